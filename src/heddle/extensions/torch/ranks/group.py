"""The ranks beside rank 0: their processes, and what they say.

A rank that ends, fails, is silent for too long, or computes other values than rank 0 makes the
group fail: all ranks are killed, so that nobody waits for them, and the reason stays readable. A
failed group never recovers; the model is loaded again with a new one.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.errors import EngineFailedError
from heddle.extensions.processes.children.messages import Content, Done, WarmUp
from heddle.extensions.processes.children.places import place
from heddle.extensions.processes.children.process import ChildProcess, close_all
from heddle.extensions.processes.plans import PlanWriter
from heddle.extensions.torch.ranks.messages import Computed, Join, Loaded, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.extensions.processes.children.messages import Message, StateCall
    from heddle.extensions.processes.children.places import Started
    from heddle.extensions.torch.ranks.messages import Setup
    from heddle.step import StepPlan

AnswerT = TypeVar("AnswerT", bound="Message")

_log = logging.getLogger(__name__)


class _Rank:
    """A process, and what it has said."""

    def __init__(
        self, setup: Setup, name: str, started: Started, seconds: float, group: RankGroup
    ) -> None:
        self.number = setup.rank
        self.setup = setup
        self.digests: deque[bytes] = deque()  # of steps that rank 0 has not finished
        self.expected: deque[bytes | None] = deque()  # of steps that the rank has not finished
        self.process = ChildProcess(
            name,
            started,
            seconds,
            Report,
            partial(group.hear, self),
            group.note_problem,
        )
        self.answers = self.process.queue()


class RankGroup:
    """Ranks 1 to N - 1. Rank 0's thread calls all methods, unless they say otherwise."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long a rank may be silent, and how long ranks wait for one another."""
        self.folder = Path(tempfile.mkdtemp(prefix="heddle-ranks-"))
        self.held_bytes = 0
        self._seconds = seconds
        self._ranks: list[_Rank] = []
        self._plans = PlanWriter()
        self._lock = threading.Lock()
        self._report: Callable[[str], None] = lambda _: None
        self._problem: str | None = None
        self._failed = threading.Event()

    # --- the life of the ranks

    def start(self, setups: Sequence[Setup]) -> None:
        """Start a process for each setup, and check that it runs the same program.

        Raises:
            EngineFailedError: a process does not start, or runs another version.
        """
        names = [f"rank {setup.rank}" for setup in setups]
        started = place().start("heddle.extensions.torch.ranks.child", names)
        for setup, name, one in zip(setups, names, started, strict=True):
            self._ranks.append(_Rank(setup, name, one, self._seconds, self))
        for rank in self._ranks:
            rank.process.greet()
            self._send(rank, rank.setup)

    def wait_loaded(self) -> None:
        """Wait until all ranks have loaded their shares; then they connect to one another.

        Raises:
            EngineFailedError: a rank failed.
        """
        for rank in self._ranks:
            self.held_bytes += self._answer(rank, Loaded).held_bytes
        for rank in self._ranks:
            self._send(rank, Join())

    def wait_joined(self) -> None:
        """Wait until all ranks are connected. Raises EngineFailedError if one failed."""
        for rank in self._ranks:
            self._answer(rank, Done)

    def begin_warm_up(self) -> None:
        """Let all ranks prepare for steps, together with rank 0.

        Raises:
            EngineFailedError: the group has failed.
        """
        for rank in self._ranks:
            self._send(rank, WarmUp(0))

    def wait_warm(self) -> None:
        """Wait until all ranks are prepared. Raises EngineFailedError if one failed."""
        for rank in self._ranks:
            self._answer(rank, Done)

    def close(self) -> None:
        """End all processes and wait for them. Idempotent."""
        close_all([rank.process for rank in self._ranks])
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End all processes at once, so that rank 0 waits for none. Any thread may call this."""
        for rank in self._ranks:
            rank.process.kill()

    def problem(self, wait: float = 0.0) -> str | None:
        """Why the group failed; None if it has not, after at most `wait` seconds."""
        self._failed.wait(wait)
        return self._problem

    # --- steps and state

    def begin(self, plan: StepPlan, rewound: tuple[int, ...]) -> None:
        """Let all ranks compute a plan. `rewound` are slots that rank 0's last step set back.

        Raises:
            EngineFailedError: the group has failed.
        """
        step = self._plans.write(plan, rewound=rewound)
        for rank in self._ranks:
            self._send(rank, step)

    def note(self, digest: bytes | None) -> None:
        """Compare rank 0's digest of a step with those of the other ranks, once they come.

        None: the step was dropped, so digests of it may be any.
        """
        for rank in self._ranks:
            self._compare(rank, rank.expected, digest)

    def read(self, call: StateCall, size: int) -> list[memoryview]:
        """Each rank's part of a page or snapshot, which has `size` bytes.

        Raises:
            EngineFailedError: the group has failed.
        """
        for rank in self._ranks:
            self._send(rank, call)
        parts = [self._answer(rank, Content).content for rank in self._ranks]
        for rank, part in zip(self._ranks, parts, strict=True):
            if len(part) != size:
                raise rank.process.fail(
                    f"rank {rank.number} sent {len(part)} bytes of state, not {size}"
                )
        return parts

    def write(self, calls: Sequence[StateCall]) -> None:
        """Give each rank its part of a page or snapshot. Ranks do not answer.

        Raises:
            EngineFailedError: the group has failed.
        """
        for rank, call in zip(self._ranks, calls, strict=True):
            self._send(rank, call)

    # --- messages and failures: the threads of the processes call these

    def hear(self, rank: _Rank, report: Message) -> None:
        """Take a rank's message."""
        if isinstance(report, Computed):
            self._compare(rank, rank.digests, report.digest)
        else:
            rank.answers.put(report)

    def note_problem(self, problem: str) -> None:
        """Note the first problem, and end all ranks. Any thread may call this."""
        with self._lock:
            is_first = self._problem is None
            if is_first:
                self._problem = problem
                _log.error("all ranks end: %s", problem)
        self._failed.set()
        self.kill()
        if is_first:
            self._report(problem)

    def watch(self, failed: Callable[[str], None]) -> None:
        """See `Executor.watch`."""
        with self._lock:
            self._report, problem = failed, self._problem
        if problem is not None:
            failed(problem)

    def _send(self, rank: _Rank, message: Message) -> None:
        self._check()
        try:
            rank.process.send(message)
        except EngineFailedError:
            raise self.error(self.problem(wait=self._seconds)) from None

    def _answer(self, rank: _Rank, kind: type[AnswerT]) -> AnswerT:
        """The rank's next answer, which must be of a kind."""
        try:
            found = rank.process.take(rank.answers)
        except EngineFailedError:
            raise self.error(self.problem(wait=self._seconds)) from None
        if not isinstance(found, kind):
            raise rank.process.fail(
                f"rank {rank.number} answered {type(found).__name__}, not {kind.__name__}"
            )
        return found

    def _check(self) -> None:
        if self._problem is not None:
            raise self.error(self._problem)

    @staticmethod
    def error(problem: str | None) -> EngineFailedError:
        """The error of a group that failed."""
        return EngineFailedError(problem or "the ranks ended without a reason")

    def _compare(self, rank: _Rank, digests: deque[Any], digest: bytes | None) -> None:
        """Add the digest of a step, and compare it if the other one is there."""
        is_equal = True
        with self._lock:
            digests.append(digest)
            if rank.digests and rank.expected:
                found, expected = rank.digests.popleft(), rank.expected.popleft()
                is_equal = expected is None or found == expected
        if not is_equal:
            rank.process.fail(f"rank {rank.number} computed other values than rank 0")


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
