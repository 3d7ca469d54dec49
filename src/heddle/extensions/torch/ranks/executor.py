"""The executor of a model that several ranks compute: rank 0's executor, and the group."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from heddle.errors import EngineFailedError, HeddleError, StepAbandonedError, StepMemoryError
from heddle.executor import Executor, WarmingExecutor
from heddle.extensions.processes.children.messages import (
    ReadPage,
    ReadSnapshot,
    WritePage,
    WriteSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.executor import DeviceMemory, ModelShape
    from heddle.executors.cpu.logit_edits import EditSource
    from heddle.extensions.torch.ranks.group import RankGroup
    from heddle.roofline import ModelWork
    from heddle.state import StateMemory
    from heddle.step import StepPlan, StepResult


class LeadingExecutor(WarmingExecutor, Executor, Protocol):
    """Rank 0's executor."""

    @property
    def rewound(self) -> tuple[int, ...]:
        """Slots whose fixed-size state the last step set back."""
        ...

    @property
    def digest(self) -> bytes:
        """A digest of values of the last step that all ranks have alike."""
        ...

    def check(self, plan: StepPlan) -> None:
        """Raise EngineFailedError if something in a plan is out of range."""
        ...

    def begin(self, plan: StepPlan) -> None:
        """Submit a plan that was checked."""
        ...

    def use_edits(self, edits: EditSource) -> None:
        """Take the edits of logits from there."""
        ...


class RankedExecutor:
    """Runs plans on all ranks; see `heddle.executor.Executor`. Rank 0 samples."""

    def __init__(self, leader: LeadingExecutor, group: RankGroup, ranks: int) -> None:
        """Takes over both, and closes them."""
        self.shape: ModelShape = leader.shape
        self.memory = _of_all(leader.memory, ranks)
        self.work: ModelWork = leader.work
        self.head = None
        self.held_bytes: int = leader.held_bytes + group.held_bytes
        self.runs_ahead: bool = leader.runs_ahead
        self.warm_ups: int = leader.warm_ups
        self.use_edits, self.measure_limits = leader.use_edits, leader.measure_limits
        self.logits_summary = leader.logits_summary
        self.watch = group.watch
        self._leader = leader
        self._group = group
        self._ranks = ranks
        self._rewound: tuple[int, ...] = ()
        self._in_flight = 0  # steps that all ranks have got
        self._abandoned = False

    @property
    def page_format(self) -> str:
        return f"{self._leader.page_format} ranks {self._ranks}"

    @property
    def summary(self) -> str:
        return f"{self._ranks} ranks, each: {self._leader.summary}"

    @property
    def device_memory(self) -> DeviceMemory | None:
        return self._leader.device_memory

    @property
    def compute_seconds(self) -> float:
        return self._leader.compute_seconds

    def warm_up(self, done: Callable[[int], None]) -> None:
        self._group.begin_warm_up()
        try:
            self._leader.warm_up(done)
        except (RuntimeError, HeddleError) as error:
            problem = self._group.problem(wait=_REASON_SECONDS)
            raise EngineFailedError(problem or f"the warm-up failed: {error}") from error
        self._group.wait_warm()

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        own = self._leader.read_page(page, windows)
        others = self._group.read(ReadPage(0, page, [*windows]), len(own))
        return memoryview(b"".join([own, *others]))

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        own, *others = self._parts(content)
        self._leader.write_page(page, own, windows)
        self._group.write([WritePage(0, page, [*windows], one) for one in others])

    def read_snapshot(self, snapshot: int) -> memoryview:
        own = self._leader.read_snapshot(snapshot)
        others = self._group.read(ReadSnapshot(0, snapshot), len(own))
        return memoryview(b"".join([own, *others]))

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        own, *others = self._parts(content)
        self._leader.write_snapshot(snapshot, own)
        self._group.write([WriteSnapshot(0, snapshot, one) for one in others])

    def submit(self, plan: StepPlan) -> None:
        self._leader.check(plan)
        rewound, self._rewound = self._rewound, ()
        self._group.begin(plan, rewound)  # rank 0 may wait for the others when it begins
        self._in_flight += 1
        with self._reason():
            self._leader.begin(plan)

    def collect(self) -> StepResult:
        try:
            with self._reason():
                result = self._leader.collect()
        except StepMemoryError:  # it ends all steps in flight; the other ranks do complete them
            for _ in range(self._in_flight):
                self._group.note(None)
            self._in_flight = 0
            raise
        self._in_flight -= 1
        self._rewound = self._leader.rewound
        self._group.note(self._leader.digest)
        return result

    @contextmanager
    def _reason(self) -> Iterator[None]:
        """Give a failure of rank 0 the reason of the group, if that has failed."""
        try:
            yield
        except StepMemoryError:  # all ranks go on
            raise
        except EngineFailedError as error:
            if self._abandoned:
                raise StepAbandonedError("the step was abandoned") from error
            # A rank that ends closes its connections first; its reason follows.
            problem = self._group.problem(wait=_REASON_SECONDS)
            raise EngineFailedError(problem or error.message) from error

    def abandon(self) -> None:
        self._abandoned = True
        self._leader.abandon()
        self._group.kill()  # rank 0 may wait for them

    def close(self) -> None:
        """End all ranks and free all memory. Idempotent."""
        self._group.close()
        self._leader.close()

    def _parts(self, content: memoryview) -> list[memoryview]:
        """The part of each rank. All parts have one size."""
        size = len(content) // self._ranks
        return [content[rank * size : (rank + 1) * size] for rank in range(self._ranks)]


_REASON_SECONDS = 2.0
"""How long a failed step waits for the reason."""


def _of_all(memory: StateMemory, ranks: int) -> StateMemory:
    """The memory of all ranks, from that of one: as many pages, each with the parts of all."""
    return replace(
        memory,
        page_bytes=ranks * memory.page_bytes,
        windows=tuple(
            replace(window, page_bytes=ranks * window.page_bytes) for window in memory.windows
        ),
        snapshot_bytes=ranks * memory.snapshot_bytes,
        fixed=tuple((layer, ranks * size) for layer, size in memory.fixed),
    )
