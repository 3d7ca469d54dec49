"""The CPU executor: records a model's forward pass, and runs plans natively.

`load` (`load.py`) makes it. `submit` lays a plan out as arrays and starts the compute threads.
`collect` joins them without the GIL, and makes the results from the sampled tokens.
"""

from __future__ import annotations

import hashlib
import logging
import math
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from heddle import _native
from heddle.embedding import EmbeddingParams
from heddle.errors import (
    EngineFailedError,
    StepAbandonedError,
    UnsupportedModelError,
)
from heddle.executors.arithmetic import (
    MODEL_SOURCES,
    rope_digest,
    source_digest,
    trigonometry_digest,
)
from heddle.executors.cpu.adapters import AdapterPacker
from heddle.executors.cpu.batch import Layout, pooled_states
from heddle.executors.cpu.encoder import CpuEncoder
from heddle.executors.cpu.fixed_memory import FixedMemory
from heddle.executors.cpu.kv_memory import KvMemory
from heddle.executors.cpu.limits import measure
from heddle.executors.cpu.logit_edits import LogitEdits
from heddle.executors.cpu.lowering import lower
from heddle.executors.cpu.readout import pooled, scored
from heddle.executors.cpu.ropes import RopeTables
from heddle.executors.cpu.samplers import bound_sampler, make_sampler, pick_failure
from heddle.executors.failures import sampler_failed, summarize
from heddle.executors.given_states import given_states
from heddle.executors.graph.forward import model_work, record
from heddle.executors.seeing import eyes_mix
from heddle.executors.serving import (
    describe_memory,
    fixed_places,
    page_layout,
    position_bytes,
)
from heddle.process_memory import machine_memory
from heddle.sampling_params import SamplingParams
from heddle.sizes import counted
from heddle.state import PAGE_TOKENS
from heddle.step import Deferred, Failed, Sampled, StepResult, most_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from heddle.config import EngineConfig
    from heddle.errors import HeddleError
    from heddle.executor import DeviceMemory, LogitsSummary, ModelShape
    from heddle.executors.cpu.batch import PooledStates
    from heddle.executors.cpu.logit_edits import EditSource
    from heddle.executors.cpu.weights import LinearWeight, TableWeight
    from heddle.executors.graph.forward import Forward
    from heddle.models.decoder import Decoder
    from heddle.models.eyes import Eyes
    from heddle.roofline import Limits
    from heddle.state import StateMemory
    from heddle.step import Binding, Chunk, StepPlan
    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.low_rank import Change

    # A step in flight: the step, its plan, the chunks that sample, their samplers, the function
    # that waits for the samplers' edits, and the hidden states that are kept. A tuple costs less
    # than an object.
    _Submitted: TypeAlias = tuple[
        _native.Step,
        StepPlan,
        list[Chunk],
        list[_native.Sampler],
        Callable[[], None] | None,
        list[npt.NDArray[np.float64]],
    ]

_log = logging.getLogger(__name__)

SOURCES = (
    *MODEL_SOURCES,
    "executors/cpu/adapters.py",
    "executors/cpu/batch.py",
    "executors/cpu/encoder.py",
    "executors/cpu/fixed_memory.py",
    "executors/cpu/kv_memory.py",
    "executors/cpu/lowering.py",
    "executors/cpu/ropes.py",
    "executors/cpu/weights.py",
    "weights/mix.py",
)
"""Python code that determines the bits of pages. Samplers and edits only choose tokens."""


_LET_GO = (
    *("_submitted", "_program", "_ropes", "_kv", "_fixed", "_samplers", "_edits", "_sums"),
    *("_packer", "_runtime"),
)
"""Attributes that a closed executor no longer has."""


class Packed(NamedTuple):
    """Bytes of packed weights: of the matrices that matmuls read, and of all; then of the tokenizer
    and its data for grammars."""

    matmul_bytes: int
    bytes: int
    text_bytes: int


class CpuExecutor:
    """Runs plans on the CPU; see `heddle.executor.Executor`.

    Attributes:
        isa: instruction level of the kernels.
        threads: number of threads that compute, including the caller of `collect`.
        weight_bytes: bytes of the matrices that matmuls read.
        kv_type: storage type of keys and values.
        held_bytes: bytes of the packed weights, of all pages, those of the head included, and of
            the tokenizer.
        page_bytes: bytes of the keys and values of 32 tokens, all layers.
    """

    runs_ahead = False

    def __init__(
        self,
        model: Decoder,
        shape: ModelShape,
        weights: Any,
        runtime: _native.Runtime,
        config: EngineConfig,
        packed: Packed,
        memory: StateMemory,
        head: CpuExecutor | None = None,
        threads_note: str = "",
    ) -> None:
        self.shape = shape
        self._runtime = runtime
        self.isa = runtime.isa
        self.threads = runtime.threads
        self._threads_note = threads_note
        self.weight_bytes = packed.matmul_bytes
        self._packed_bytes = packed.bytes
        self.kv_type = config.kv_type
        self._quantize = config.quantize
        self._kv = KvMemory(config.kv_type, memory)
        self.memory = memory
        self._fixed = FixedMemory(memory) if memory.fixed else None
        self.head = head
        of_head = 0 if head is None else head.memory.bytes
        self.held_bytes: int = packed.bytes + packed.text_bytes + memory.bytes + of_head
        self.page_bytes = self.memory.token_page_bytes
        self.compute_seconds = 0.0
        self._max_rows = sampled_rows(config)
        try:
            self._program = _native.Program(
                runtime,
                self._kv.caches,
                config.batch_tokens,
                self._max_rows,
                None if self._fixed is None else self._fixed.states,
            )
        except ValueError as error:
            raise UnsupportedModelError(f"the model cannot be run on a CPU: {error}") from error
        # No sequence is longer than the cache, even if the file has a huge context.
        positions = min(shape.context, self.memory.pages * PAGE_TOKENS)
        self._ropes = RopeTables(self._program, positions)
        forward = record(model, weights)
        self._logits, self._states = self._lower(forward)
        self._packer = AdapterPacker(self._program, forward, runtime.isa)
        self._program.sample(self._logits)
        self._samplers: dict[int, _native.Sampler] = {}
        self._sampler_failures: dict[int, HeddleError] = {}  # by slot
        self._sampled_rows = self._scored_rows = 0  # of the last step, in this order
        self._edits: EditSource = LogitEdits()
        self._sums: dict[int, PooledStates] = {}  # by slot, for sequences with an embedding
        self._submitted: _Submitted | None = None

    def make_encoder(self, eyes: Eyes, checkpoint: Checkpoint, most: int) -> CpuEncoder:
        """See :class:`heddle.executors.seeing.SeeingExecutor`."""
        encoder = CpuEncoder(eyes, checkpoint, self._runtime, eyes_mix(self._quantize), most)
        self.held_bytes += encoder.held_bytes
        return encoder

    def _lower(self, forward: Forward) -> tuple[int, int | None]:
        self.work = model_work(forward, self.weight_bytes, position_bytes(self.memory))
        self._rope_digest = rope_digest(forward)
        try:
            places = fixed_places(self.memory)
            return lower(forward, self._program, self._ropes, self._kv.places, places)
        except ValueError as error:
            raise UnsupportedModelError(f"the model cannot be run on a CPU: {error}") from error

    @property
    def page_format(self) -> str:
        arithmetic = f"{_native_digest()} {source_digest(*SOURCES)} {trigonometry_digest()}"
        size = f"{PAGE_TOKENS} {page_layout(self.memory)}"
        stored = f"{self.kv_type} {self._quantize}"
        return f"cpu {stored} {size} {arithmetic} {self._rope_digest}"

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        return self._kv.read(page, windows)

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        self._kv.write(page, content, windows)

    def read_snapshot(self, snapshot: int) -> memoryview:
        return self._recurrent_states.read(snapshot)

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        self._recurrent_states.write(snapshot, content)

    @property
    def _recurrent_states(self) -> FixedMemory:
        """Raises ValueError: no layer is recurrent, so there is no snapshot."""
        if self._fixed is None:
            raise ValueError("there are no snapshots: no layer has a state of fixed size")
        return self._fixed

    @property
    def summary(self) -> str:
        return (
            f"{counted(self.threads, 'thread')}{self._threads_note}, {self.isa},"
            f" weights {self._packed_bytes / 1e6:,.0f} MB,"
            f" {describe_memory(self.memory, self.kv_type)}"
        )

    @property
    def device_memory(self) -> DeviceMemory | None:
        return machine_memory()

    def use_edits(self, edits: EditSource) -> None:
        """Take the edits of logits from there. This is called before the first step."""
        self._edits = edits

    def adaptable(self) -> Mapping[str, LinearWeight | TableWeight]:
        """The matrices that adapters may change, by name."""
        return self._packer.weights

    def make_adapter(self, changes: Mapping[str, Change]) -> _native.Adapter:
        return self._packer.pack(changes)

    def measure_limits(self) -> Limits:
        return measure(self.threads, self.isa, self.weight_bytes, self._program.barriers)

    def set_profiling(self, on: bool) -> None:
        """Start or stop timing the instructions. Call it while no step runs."""
        self._program.set_profiling(on)

    def take_profile(self) -> dict[str, float]:
        """Seconds per kind of instruction since the last call, in the thread that collects."""
        seconds: dict[str, float] = {}
        for kind, nanoseconds in self._program.take_profile():
            seconds[kind] = seconds.get(kind, 0.0) + nanoseconds * 1e-9
        return seconds

    def submit(self, plan: StepPlan) -> None:
        for binding in plan.bindings:
            self._bind(binding)
        sampling = [chunk for chunk in plan.chunks if chunk.sample]
        try:
            layout = self._layout(plan)
        except ValueError as error:
            raise EngineFailedError(f"the step was refused: {error}") from error
        samplers = [self._samplers[chunk.slot] for chunk in sampling]
        fill = self._edits.begin_edits(sampling, self._samplers)
        guesses = [c.guesses for c in sampling] if any(c.guesses for c in sampling) else ()
        scored_rows, may_sample = layout.scored_rows(), fill is None
        try:
            for copy in plan.copies:
                self._kv.copy(copy)
            if self._states is not None:
                self._program.write(self._states, given_states(plan))
            step = self._program.begin(
                *layout.arrays(),
                samplers,
                may_sample,
                scored_rows,
                layout.pooled,
                guesses,
                layout.adapted,
                layout.places(self._ropes.axes),
                layout.runs(),
                layout.seen,
            )
        except ValueError as error:
            raise EngineFailedError(f"the step was refused: {error}") from error
        except MemoryError as error:
            raise _out_of_memory() from error
        self._sampled_rows, self._scored_rows = len(layout.rows), len(layout.scored)
        self._submitted = step, plan, sampling, samplers, fill, layout.kept

    def _layout(self, plan: StepPlan) -> Layout:
        """The plan as arrays. Clears and restores fixed-size states, and extends rope tables."""
        self._ropes.reach(max(chunk.start + len(chunk.tokens) for chunk in plan.chunks))
        if self._fixed is None:
            return Layout.of(plan, self._sums, self.shape.width)
        self._fixed.prepare(plan)
        return Layout.of(plan, self._sums, self.shape.width, self._fixed.places(plan))

    def collect(self) -> StepResult:
        submitted, self._submitted = self._submitted, None
        assert submitted is not None, "collect was called without submit"
        step, plan, sampling, samplers, fill, kept = submitted
        try:
            if fill is not None:
                fill()
        finally:
            read = _finished(step)
        self.compute_seconds = self._program.seconds
        if read is None:
            raise StepAbandonedError("the step was abandoned")
        picks, scores = read
        if self._fixed is not None:
            self._fixed.keep(plan)
            for chunk, picked in zip(sampling, picks, strict=True):
                stands = len(picked) > chunk.guesses and self._edits.late(chunk.slot) is None
                if chunk.uncertain and stands:
                    self._fixed.advance(chunk.slot)
        firsts = accumulate((1 + chunk.guesses for chunk in sampling), initial=0)
        outcomes = map(self._sampled, sampling, samplers, picks, firsts)
        sampled = tuple(chain.from_iterable(outcomes))
        states = tuple(of_chunk.astype(np.float32) for of_chunk in kept)
        scores_of = scored(plan, scores, lambda number: self._row(self._sampled_rows + number))
        return StepResult(sampled, scores_of, pooled(plan, self._sums), states)

    def _bind(self, binding: Binding) -> None:
        if isinstance(binding.params, EmbeddingParams):
            width = self._program.pooled_width
            self._sums[binding.slot] = pooled_states(binding.params, width)
        else:
            self._sampler_failures.pop(binding.slot, None)
            self._samplers[binding.slot] = self._sampler(binding, binding.params)
            self._edits.bind(binding)

    def _sampler(self, binding: Binding, params: SamplingParams) -> _native.Sampler:
        """The binding's sampler. If it cannot be made, a greedy one serves, and the slot fails."""
        try:
            return bound_sampler(binding, params)
        except Exception as cause:
            _log.exception("a sampler failed")
            self._sampler_failures[binding.slot] = sampler_failed(cause)
            return make_sampler(SamplingParams(temperature=0, seed=0))

    def _row(self, number: int) -> npt.NDArray[np.float32] | None:
        """A row of the last step's logits. None: the program has put a later row in its place."""
        if number + self._max_rows < self._sampled_rows + self._scored_rows:
            return None
        place = number % self._max_rows
        row: npt.NDArray[np.float32] = self._program.copy(self._logits, place + 1)[place]
        return row

    def _sampled(
        self, chunk: Chunk, sampler: _native.Sampler, picks: list[_native.Pick], first: int
    ) -> list[Sampled | Failed | Deferred]:
        """The outcomes of a chunk: one, and one more for each guess that was confirmed.

        `first` is the number of its first row of logits.
        """
        slot = chunk.slot
        late = self._edits.late(slot)
        if late is not None:
            return [Deferred(slot, late)]
        failure = self._sampler_failures.get(slot) or self._edits.failure(slot)
        if failure is not None:
            return [Failed(slot, failure)]
        # Mirostat's bound is the one after the last token. Nothing needs those before.
        wanted, mu = sampler.logprobs >= 0, sampler.mu
        outcomes: list[Sampled | Failed | Deferred] = [
            Sampled(slot, token, logprob if wanted else math.nan, tuple(top), mu)
            for token, logprob, top in picks
        ]
        tokens = [token for token, _, _ in picks]
        right = len(tokens) - 1
        failure = pick_failure(tokens[-1], chunk, right, lambda: self._row(first + right))
        if failure is not None:
            outcomes[-1] = Failed(slot, failure)
        else:
            self._edits.observe(slot, tokens)
        return outcomes

    def logits(self, plan: StepPlan) -> npt.NDArray[np.float32]:
        """Run a plan without sampling. Returns logits (R, vocabulary) of chunks that sample."""
        layout = self._layout(plan)
        self._program.begin(
            *layout.arrays(),
            [],
            adapted=layout.adapted,
            places=layout.places(self._ropes.axes),
            runs=layout.runs(),
            seen=layout.seen,
        ).finish()
        return self._program.copy(self._logits, len(layout.rows))

    def watch(self, failed: Callable[[str], None]) -> None:
        """Nothing: it fails in steps only."""

    def logits_summary(self) -> LogitsSummary | None:
        rows = min(self._sampled_rows, self._max_rows)
        return summarize(self._program.copy(self._logits, rows)) if rows else None

    def abandon(self) -> None:
        program = vars(self).get("_program")  # missing after `close`
        if program is not None:
            program.abandon()

    def close(self) -> None:
        """Free all threads and memory. The public attributes stay readable. Idempotent."""
        if self.head is not None:
            self.head.close()
        for name in _LET_GO:
            vars(self).pop(name, None)


def _native_digest() -> str:
    """Digest of the installed native module: kernels, packing and pages."""
    return hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()


def sampled_rows(config: EngineConfig) -> int:
    """Most tokens of a step after which it may sample."""
    return min(most_rows(config.slots), config.batch_tokens)


def _finished(
    step: _native.Step,
) -> tuple[list[list[_native.Pick]], list[_native.Score]] | None:
    """The result of `Step.finish`. Raises errors of compute threads as EngineFailedError."""
    try:
        return step.finish()
    except MemoryError as error:
        raise _out_of_memory() from error
    except RuntimeError as error:
        raise EngineFailedError(f"a compute thread failed: {error}") from error


def _out_of_memory() -> EngineFailedError:
    return EngineFailedError(
        "the machine has no memory left for the step; set a smaller kv_cache or fewer slots"
    )
