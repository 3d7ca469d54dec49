"""The ranks beside rank 0: their processes, and what they say.

A thread receives their messages. A rank that ends, fails, is silent for too long, or computes other
values than rank 0 makes the group fail: all ranks are killed, so that nobody waits for them, and
the reason stays readable. A failed group never recovers; the model is loaded again with a new one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.errors import EngineFailedError
from heddle.executors.ranks.channel import Channel, ChannelClosedError, Kind
from heddle.executors.ranks.plans import encode_plan
from heddle.executors.ranks.setup import program_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.executors.ranks.setup import Setup
    from heddle.step import StepPlan

_log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
"""Time between two signs of life of a rank."""

_GOODBYE_SECONDS = 5.0
"""How long a closed rank may take to end before it is killed."""


@dataclass(eq=False)
class _Rank:
    """A process, and what it has said."""

    number: int
    process: subprocess.Popen[bytes]
    channel: Channel
    heard: float
    answers: queue.SimpleQueue[tuple[Kind, bytes]] = field(default_factory=queue.SimpleQueue)
    digests: deque[bytes] = field(default_factory=deque)  # of steps that rank 0 has not finished
    expected: deque[bytes] = field(default_factory=deque)  # of steps that the rank has not finished


class RankGroup:
    """Ranks 1 to N - 1. Rank 0's thread calls all methods, unless they say otherwise."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long a rank may be silent, and how long ranks wait for one another."""
        self.folder = Path(tempfile.mkdtemp(prefix="heddle-ranks-"))
        self.held_bytes = 0
        self._seconds = seconds
        self._ranks: list[_Rank] = []
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._closing = threading.Event()
        self._failed = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="heddle-ranks", daemon=True)

    # --- the life of the ranks

    def start(self, setups: Sequence[Setup]) -> None:
        """Start a process for each setup, and check that it runs the same program.

        Raises:
            EngineFailedError: a process does not start, or runs another version.
        """
        for setup in setups:
            self._ranks.append(self._spawn(setup))
        self._listener.start()
        expected = program_version()
        for rank, setup in zip(self._ranks, setups, strict=True):
            found = json.loads(self._answer(rank, Kind.HELLO))
            if found != expected:
                raise self._fail(f"rank {rank.number} runs {found}, rank 0 {expected}")
            self._send(rank, Kind.SETUP, setup.to_bytes())

    def wait_loaded(self) -> None:
        """Wait until all ranks have loaded their shares; then they connect to one another.

        Raises:
            EngineFailedError: a rank failed.
        """
        for rank in self._ranks:
            self.held_bytes += json.loads(self._answer(rank, Kind.LOADED))["bytes"]
        for rank in self._ranks:
            self._send(rank, Kind.JOIN)

    def wait_joined(self) -> None:
        """Wait until all ranks are connected. Raises EngineFailedError if one failed."""
        for rank in self._ranks:
            self._answer(rank, Kind.JOINED)

    def close(self) -> None:
        """End all processes and wait for them. Idempotent."""
        self._closing.set()
        for rank in self._ranks:
            with contextlib.suppress(ChannelClosedError):
                rank.channel.send(Kind.CLOSE)
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
        if self._listener.is_alive() and threading.current_thread() is not self._listener:
            self._listener.join()
        for rank in self._ranks:
            rank.channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End all processes at once, so that rank 0 waits for none. Any thread may call this."""
        self._closing.set()
        self._kill()

    def problem(self, wait: float = 0.0) -> str | None:
        """Why the group failed; None if it has not, after at most `wait` seconds."""
        self._failed.wait(wait)
        return self._problem

    # --- steps and state

    def begin(self, plan: StepPlan, rewound: Sequence[int]) -> None:
        """Let all ranks compute a plan. `rewound` are slots that rank 0's last step set back.

        Raises:
            EngineFailedError: the group has failed.
        """
        content = encode_plan(plan, rewound)
        for rank in self._ranks:
            self._send(rank, Kind.PLAN, content)

    def note(self, digest: bytes) -> None:
        """Compare rank 0's digest of a step with those of the other ranks, once they come."""
        for rank in self._ranks:
            self._compare(rank, rank.expected, digest)

    def read(self, kind: Kind, numbers: Sequence[int]) -> list[bytes]:
        """Each rank's part of a page or snapshot.

        Raises:
            EngineFailedError: the group has failed.
        """
        content = array("q", numbers).tobytes()
        for rank in self._ranks:
            self._send(rank, kind, content)
        return [self._answer(rank, Kind.CONTENT) for rank in self._ranks]

    def write(self, kind: Kind, numbers: Sequence[int], parts: Sequence[memoryview]) -> None:
        """Give each rank its part of a page or snapshot.

        Raises:
            EngineFailedError: the group has failed.
        """
        head = array("q", [len(numbers), *numbers]).tobytes()
        for rank, part in zip(self._ranks, parts, strict=True):
            self._send(rank, kind, head + part)

    # --- messages

    def _spawn(self, setup: Setup) -> _Rank:
        own, other = socket.socketpair()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "heddle.executors.ranks.child", str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except OSError as error:
            own.close()
            raise self._fail(f"rank {setup.rank} does not start: {error.strerror}") from error
        finally:
            other.close()
        return _Rank(setup.rank, process, Channel(own), time.monotonic())

    def _send(self, rank: _Rank, kind: Kind, content: bytes = b"") -> None:
        self._check()
        try:
            rank.channel.send(kind, content)
        except ChannelClosedError:
            raise self.error(self.problem(wait=self._seconds)) from None

    def _answer(self, rank: _Rank, kind: Kind) -> bytes:
        """The rank's next answer, which must be of a kind."""
        while True:
            self._check()
            try:
                found, content = rank.answers.get(timeout=0.1)
            except queue.Empty:
                continue
            if found is not kind:
                raise self._fail(f"rank {rank.number} answered {found.name}, not {kind.name}")
            return content

    def _check(self) -> None:
        if self._problem is not None:
            raise self.error(self._problem)

    def _fail(self, problem: str) -> EngineFailedError:
        """Note the first problem, and end all ranks. Any thread may call this."""
        with self._lock:
            if self._problem is None:
                self._problem = problem
                _log.error("%s; all ranks end", problem)
        self._failed.set()
        self._kill()
        return self.error(self._problem)

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.process.kill()

    @staticmethod
    def error(problem: str | None) -> EngineFailedError:
        """The error of a group that failed."""
        return EngineFailedError(problem or "the ranks ended without a reason")

    def _listen(self) -> None:
        """Receive messages until all ranks have ended."""
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select(BEAT_SECONDS):
                    rank = key.data
                    try:
                        self._hear(rank, *rank.channel.receive())
                    except (ChannelClosedError, ValueError):
                        selector.unregister(rank.channel)
                        self._lost(rank)
                self._look_for_silence()

    def _hear(self, rank: _Rank, kind: Kind, content: bytes) -> None:
        rank.heard = time.monotonic()
        if kind is Kind.FAILED:
            self._fail(f"rank {rank.number} failed: {content.decode()}")
        elif kind is Kind.DONE:
            self._compare(rank, rank.digests, content)
        elif kind is not Kind.BEAT:
            rank.answers.put((kind, content))

    def _compare(self, rank: _Rank, digests: deque[bytes], digest: bytes) -> None:
        """Add the digest of a step, and compare it if the other one is there."""
        with self._lock:
            digests.append(digest)
            is_there = rank.digests and rank.expected
            is_equal = not is_there or rank.digests.popleft() == rank.expected.popleft()
        if not is_equal:
            self._fail(f"rank {rank.number} computed other values than rank 0")

    def _lost(self, rank: _Rank) -> None:
        """A rank's process has ended, or is about to."""
        if self._closing.is_set():
            return
        try:
            code = rank.process.wait(_GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self._fail(f"rank {rank.number} closed its channel")
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        self._fail(f"rank {rank.number} (process {rank.process.pid}) {how}")

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        for rank in self._ranks:
            if now - rank.heard > self._seconds and not self._closing.is_set():
                self._fail(
                    f"rank {rank.number} (process {rank.process.pid}) has been silent for more"
                    f" than {self._seconds:g} s"
                )


def start_ranks(setups: Callable[[Path], Sequence[Setup]], seconds: float) -> RankGroup:
    """Start ranks. `setups` makes their setups from the folder where they meet.

    Raises:
        EngineFailedError: a rank does not start. None is left.
    """
    group = RankGroup(seconds)
    try:
        group.start(setups(group.folder))
    except BaseException:
        group.close()
        raise
    return group
