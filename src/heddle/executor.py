"""The contract of an executor, which runs the plans of `step.py` on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from heddle.roofline import Limits, ModelWork
    from heddle.state import StateMemory
    from heddle.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that the engine needs. `width` is also the width of embeddings.

    `causal` says whether tokens see no later tokens. A model that is not causal is an encoder: it
    makes embeddings, generates and scores nothing, and one step computes a whole sequence.
    """

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    width: int
    causal: bool = True


@dataclass(frozen=True, slots=True)
class LogitsSummary:
    """Figures of logits, or of hidden states, after a failure.

    Attributes:
        length: number of values.
        nan, inf, negative_inf: how many of them are NaN, positive infinity, negative infinity.
        negative_rows: number of rows that have only values below zero.
        minimum, maximum, mean: of the finite values; None if there are none.
    """

    length: int
    nan: int
    inf: int
    negative_inf: int
    negative_rows: int
    minimum: float | None
    maximum: float | None
    mean: float | None

    def __str__(self) -> str:
        """The figures in words."""
        finite = "none is finite"
        if self.minimum is not None:
            finite = f"the finite ones are {self.minimum:.6g} to {self.maximum:.6g}"
        return (
            f"{self.length} values: {self.nan} NaN, {self.inf} inf, {self.negative_inf} -inf;"
            f" {finite}; rows with only negative values: {self.negative_rows}"
        )


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device's memory: those that may still be allocated, and all."""

    free: int
    total: int


class PageMemory(Protocol):
    """State as bytes. Pages and snapshots can be read and written back, bit for bit."""

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        """A copy of a page, followed by a page of each windowed group.

        Not to be called while a step writes to one of the pages.
        """
        ...

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        """Write what `read_page` returned. Not to be called while a step uses one of the pages."""
        ...

    def read_snapshot(self, snapshot: int) -> memoryview:
        """A copy of a snapshot of fixed-size state."""
        ...

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        """Write what `read_snapshot` returned to a snapshot."""
        ...


class Executor(PageMemory, Protocol):
    """Runs plans, one at a time: `submit` starts a step, `collect` returns its result.

    Between the two calls the device computes, and the caller does other work. An executor holds at
    most one submitted step, and one more if it `runs_ahead`: after each `submit` that returns, the
    caller calls `collect`, and reads or writes no page in between. If only a step that ran ahead is
    in flight, the caller may read pages that it does not write to, and waits for it. Results come
    in the order of the steps. One thread calls all methods, unless they say otherwise.

    The engine, the benchmarks and the server use only what this protocol declares.
    """

    @property
    def shape(self) -> ModelShape:
        """The model's sizes. `context` is the limit that this executor serves."""
        ...

    @property
    def memory(self) -> StateMemory:
        """Numbers of pages of each group, and of snapshots. Ids begin at 0."""
        ...

    @property
    def page_format(self) -> str:
        """Identifies everything that decides the bytes of a page, except tokens and model file.

        Executors with equal formats compute equal pages from equal files, bit for bit.
        """
        ...

    @property
    def summary(self) -> str:
        """The device and the memory that the executor holds, in a few words for people."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of the weights, and of all pages and snapshots."""
        ...

    @property
    def device_memory(self) -> DeviceMemory | None:
        """The memory of the device, of rank 0's if there are several; None if it is not known.

        The figures may be those of a second before the last step. Any thread may ask.
        """
        ...

    @property
    def work(self) -> ModelWork:
        """The work of its steps."""
        ...

    @property
    def head(self) -> Executor | None:
        """The executor of the model's own prediction head, if it has one and it is loaded.

        Its chunks have `states`: at position i it reads token i + 1 of a sequence, and the model's
        hidden state at position i. It samples token i + 2. This executor closes it.
        """
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether it takes a step before the result of the step before is collected.

        Chunks of such a step may have `UNKNOWN` tokens, of requests whose parameters and rules
        have no `needs_known_output`; penalties, DRY and bad sequences read them nevertheless.
        `submit` then keeps nothing of the plan that the caller may change.
        """
        ...

    def measure_limits(self) -> Limits:
        """Measure the peak rates of the hardware. Takes seconds. No step may run meanwhile."""
        ...

    @property
    def compute_seconds(self) -> float:
        """Total wall time of steps, as if each had been collected as soon as it was submitted.

        Any thread may call this.
        """
        ...

    def submit(self, plan: StepPlan) -> None:
        """Start a step: copy pages, compute the chunks, write their KV, make the plan's results.

        The plan must not change before `collect` has returned. After that the executor keeps no
        reference to it. If a binding's sampler cannot be made, only its sequence fails: its outcome
        is a :class:`Failed` entry.

        Raises:
            EngineFailedError: the executor refuses the plan. The caller must not call `collect`.
                The targets of the plan's copies are undefined.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the submitted step and return its result. The calling thread may compute.

        If only one sequence fails, the result has a :class:`Failed` entry for it.

        Raises:
            EngineFailedError: the complete step failed. Its copies and the KV it wrote are
                undefined.
            StepMemoryError: the same, for want of memory. Later steps may succeed if each of their
                slots is bound again.
            StepAbandonedError: `abandon` was called. Copies and KV are undefined too.
        """
        ...

    def watch(self, failed: Callable[[str], None]) -> None:
        """Call `failed` with the reason, once, if the device fails, also while no step runs.

        Any thread may make that call, also this one.
        """
        ...

    def logits_summary(self) -> LogitsSummary | None:
        """Figures of the logits that were computed last; None if there are none.

        The engine calls this after a failed step. If the step failed before its logits, they may
        be logits of the step before.
        """
        ...

    def abandon(self) -> None:
        """End the step in flight soon, without a result, and all later steps at once.

        This cannot be undone. The engine calls it when it stops, so that it need not wait for a
        step that takes a minute. Any thread may call this.
        """
        ...

    def close(self) -> None:
        """Free threads and memory. `shape`, sizes and totals stay readable. Idempotent.

        The caller must not collect a submitted step after this.
        """
        ...


@runtime_checkable
class WarmingExecutor(Protocol):
    """An executor with work to do before its first steps, which would be slow otherwise."""

    @property
    def warm_ups(self) -> int:
        """How many parts the work has; 0: none."""
        ...

    def warm_up(self, done: Callable[[int], None]) -> None:
        """Do the work, once, before the first step. `done` gets the number of parts so far."""
        ...
