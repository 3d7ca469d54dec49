"""The program of a rank other than rank 0: `python -m MODULE DESCRIPTOR`."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from heddle.executor import PageMemory
from heddle.extensions.processes.children.messages import (
    Close,
    Content,
    Done,
    WarmUp,
    serve_state,
)
from heddle.extensions.processes.children.program import serve_parent
from heddle.extensions.processes.children.versions import open_same
from heddle.extensions.processes.plans import PlanReader, Step
from heddle.extensions.torch.ranks.messages import Computed, Join, Loaded, Order, Setup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.processes.children.channel import Channel
    from heddle.step import StepPlan


_TICK = 0.0005
"""Seconds after which a rank looks again whether a step has ended."""


class ChildRank(PageMemory, Protocol):
    """A rank's share of a model, with its part of pages and snapshots.

    `load_rank` makes it.
    """

    @property
    def held_bytes(self) -> int:
        """Bytes of weights, pages and snapshots."""
        ...

    def join(self) -> None:
        """Connect to the other ranks."""
        ...

    def warm_up(self) -> None:
        """Do what comes before the first step, together with the other ranks."""
        ...

    def start(self, plan: StepPlan, rewound: Sequence[int]) -> StartedStep:
        """Ask the device for a step. `rewound` are slots whose state goes back before."""
        ...


class StartedStep(Protocol):
    """A step that the device computes."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        ...

    def digest(self) -> bytes:
        """A digest of values that all ranks have alike. Waits for the step."""
        ...


def main(descriptor: int) -> None:
    """Serve rank 0 until it closes the channel."""
    serve_parent(descriptor, Order, _serve)


def _load(setup: Setup) -> ChildRank:
    from heddle.extensions.torch.load import load_rank  # it loads torch

    with open_same(setup.path, setup.files, elsewhere=setup.is_elsewhere) as checkpoint:
        rank: ChildRank = load_rank(checkpoint, setup)
        return rank


def _serve(channel: Channel[Any]) -> None:
    setup = channel.receive()
    if not isinstance(setup, Setup):
        return
    rank = _load(setup)
    channel.send(Loaded(rank.held_bytes))
    plans, started = PlanReader(), deque[StartedStep]()
    while True:
        match message := _next_message(channel, started):
            case Close():
                return
            case Join():
                rank.join()
                channel.send(Done())
            case WarmUp():
                rank.warm_up()
                channel.send(Done())
            case Step():
                started.append(rank.start(plans.read(message), message.rewound))
            case _:
                if isinstance(answer := serve_state(rank, message), Content):
                    channel.send(answer)


def _next_message(channel: Channel[Any], started: deque[StartedStep]) -> Any:
    """The next message. Until it comes, tells rank 0 of the steps that end.

    Rank 0 may send the next plan before a step has ended, and the device needs it then.
    """
    while started:
        is_done = started[0].is_done
        if channel.has_message(0.0 if is_done else _TICK):
            break
        if is_done:
            channel.send(Computed(started.popleft().digest()))
    return channel.receive()


if __name__ == "__main__":
    main(int(sys.argv[1]))
