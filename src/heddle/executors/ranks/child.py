"""The program of a rank other than rank 0: `python -m heddle.executors.ranks.child DESCRIPTOR`.

It ends when rank 0 closes the channel, or ends itself. It ignores signals that ask it to end. A
terminal or a service manager sends them to all processes, and rank 0 finishes its requests first.
"""

from __future__ import annotations

import importlib
import json
import signal
import socket
import sys
import threading
from array import array
from typing import TYPE_CHECKING, Protocol

from heddle.errors import ModelFileError
from heddle.executors.ranks.channel import Channel, ChannelClosedError, Kind
from heddle.executors.ranks.group import BEAT_SECONDS
from heddle.executors.ranks.plans import decode_plan
from heddle.executors.ranks.setup import Setup, files_digest, program_version
from heddle.executors.registry import DEVICES
from heddle.models.registry import family_of
from heddle.step import PageMemory
from heddle.weights.formats import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.step import StepPlan


class Follower(PageMemory, Protocol):
    """A rank's share of a model, with its part of pages and snapshots.

    `load_rank` of its device's module makes it.
    """

    @property
    def held_bytes(self) -> int:
        """Bytes of weights, pages and snapshots."""
        ...

    def join(self) -> None:
        """Connect to the other ranks."""
        ...

    def compute(self, plan: StepPlan, rewound: Sequence[int]) -> bytes:
        """Compute a plan. Returns a digest of values that all ranks have alike."""
        ...


def main(descriptor: int) -> None:
    """Serve rank 0 until it closes the channel."""
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    ended = threading.Event()
    threading.Thread(target=_beat, args=(channel, ended), daemon=True).start()
    try:
        channel.send(Kind.HELLO, json.dumps(program_version()).encode())
        kind, content = channel.receive()
        if kind is Kind.SETUP:
            follower = _load(Setup.from_bytes(content))
            channel.send(Kind.LOADED, json.dumps({"bytes": follower.held_bytes}).encode())
            _serve(channel, follower)
    except ChannelClosedError:
        pass  # rank 0 has ended
    except Exception as error:
        channel.send(Kind.FAILED, str(error).encode())
        raise SystemExit(1) from error
    finally:
        ended.set()


def _beat(channel: Channel, ended: threading.Event) -> None:
    """Tell rank 0 that this process lives."""
    while not ended.wait(BEAT_SECONDS):
        try:
            channel.send(Kind.BEAT)
        except ChannelClosedError:
            return


def _load(setup: Setup) -> Follower:
    with open_checkpoint(setup.path, None, family_of) as checkpoint:
        if files_digest(checkpoint) != setup.files:
            raise ModelFileError(
                f"{setup.path} changed while the ranks loaded it; load it again once it is whole",
                field="file",
            )
        name, _, _ = setup.config.device.partition(":")
        device = importlib.import_module(DEVICES[name].module)
        follower: Follower = device.load_rank(checkpoint, setup)
        return follower


def _serve(channel: Channel, follower: Follower) -> None:
    while True:
        kind, content = channel.receive()
        match kind:
            case Kind.CLOSE:
                return
            case Kind.JOIN:
                follower.join()
                channel.send(Kind.JOINED)
            case Kind.PLAN:
                channel.send(Kind.DONE, follower.compute(*decode_plan(content)))
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
                raise ValueError(f"rank 0 sent {kind.name}")


def _with_numbers(content: bytes) -> tuple[list[int], memoryview]:
    """Integers, and the bytes after them."""
    size = array("q").itemsize
    (count,) = array("q", content[:size])
    end = size * (1 + count)
    return array("q", content[size:end]).tolist(), memoryview(content)[end:]


if __name__ == "__main__":
    main(int(sys.argv[1]))
