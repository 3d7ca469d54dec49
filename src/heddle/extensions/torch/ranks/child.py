"""The program of a rank other than rank 0: `python -m MODULE DESCRIPTOR`."""

from __future__ import annotations

import json
import sys
from array import array
from collections import deque
from typing import TYPE_CHECKING, Protocol

from heddle.errors import ModelFileError
from heddle.extensions.processes.children.channel import Life
from heddle.extensions.processes.children.program import serve_parent
from heddle.extensions.processes.children.versions import files_digest
from heddle.extensions.torch.ranks.messages import Kind
from heddle.extensions.torch.ranks.plans import decode_plan
from heddle.extensions.torch.ranks.setup import Setup
from heddle.models.families import family_of
from heddle.step import PageMemory
from heddle.weights.formats import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.processes.children.channel import Channel
    from heddle.step import StepPlan


_TICK = 0.0005
"""Seconds after which a rank looks again whether a step has ended."""


class Follower(PageMemory, Protocol):
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
    serve_parent(descriptor, _serve)


def _load(setup: Setup) -> Follower:
    from heddle.extensions.torch.load import load_rank  # it loads torch

    with open_checkpoint(setup.path, None, family_of) as checkpoint:
        if files_digest(checkpoint) != setup.files:
            raise ModelFileError(
                f"{setup.path} changed while the ranks loaded it; load it again once it is whole",
                field="file",
            )
        follower: Follower = load_rank(checkpoint, setup)
        return follower


def _serve(channel: Channel) -> None:
    kind, content = channel.receive()
    if kind != Kind.SETUP:
        return
    follower = _load(Setup.from_bytes(content))
    channel.send(Kind.LOADED, json.dumps({"bytes": follower.held_bytes}).encode())
    started: deque[StartedStep] = deque()
    while True:
        kind, content = _next_message(channel, started)
        match kind:
            case Life.CLOSE:
                return
            case Kind.JOIN:
                follower.join()
                channel.send(Kind.JOINED)
            case Kind.WARM_UP:
                follower.warm_up()
                channel.send(Kind.WARM)
            case Kind.PLAN:
                started.append(follower.start(*decode_plan(content)))
            case Kind.READ_PAGE:
                page, *windows = array("q", content)
                channel.send(Kind.CONTENT, bytes(follower.read_page(page, windows)))
            case Kind.WRITE_PAGE:
                (page, *windows), part = _with_numbers(content)
                follower.write_page(page, part, windows)
            case Kind.READ_SNAPSHOT:
                (snapshot,) = array("q", content)
                channel.send(Kind.CONTENT, bytes(follower.read_snapshot(snapshot)))
            case Kind.WRITE_SNAPSHOT:
                (snapshot,), part = _with_numbers(content)
                follower.write_snapshot(snapshot, part)
            case _:
                raise ValueError(f"rank 0 sent a message of kind {kind}")


def _next_message(channel: Channel, started: deque[StartedStep]) -> tuple[int, bytes]:
    """The next message. Until it comes, tells rank 0 of the steps that end.

    Rank 0 may send the next plan before a step has ended, and the device needs it then.
    """
    while started:
        is_done = started[0].is_done
        if channel.has_message(0.0 if is_done else _TICK):
            break
        if is_done:
            channel.send(Kind.DONE, started.popleft().digest())
    return channel.receive()


def _with_numbers(content: bytes) -> tuple[list[int], memoryview]:
    """Integers, and the bytes after them."""
    size = array("q").itemsize
    (count,) = array("q", content[:size])
    end = size * (1 + count)
    return array("q", content[size:end]).tolist(), memoryview(content)[end:]


if __name__ == "__main__":
    main(int(sys.argv[1]))
