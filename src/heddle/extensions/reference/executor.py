"""The executor of the device "reference": the recorded graph in NumPy float32, over KV pages.

Tests compare executors of real devices with it. It is slow. It computes each token separately, so
the arithmetic of a token does not depend on the rest of a step.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import EngineFailedError, HeddleError, StepAbandonedError
from heddle.executors.adapting import check_adaptable
from heddle.executors.arithmetic import MODEL_SOURCES, rope_digest, source_digest
from heddle.executors.edit_state import EditState
from heddle.executors.failures import (
    non_finite,
    nothing_allowed,
    sampler_failed,
    summarize,
)
from heddle.executors.graph.forward import adaptable, compute, model_work, record
from heddle.executors.plan_problems import plan_problems
from heddle.executors.serving import (
    describe_memory,
    page_layout,
    position_bytes,
)
from heddle.extensions.reference.ops import (
    ReferenceAdapter,
    ReferenceOps,
    SequenceChunk,
)
from heddle.extensions.reference.sampler import Past, adapted_mu, allowed, log_softmax, sample
from heddle.extensions.reference.state_arrays import FixedStates, PagedCache, PagedMemory
from heddle.models.ops import Batch
from heddle.outputs import PromptLogprob
from heddle.process_memory import machine_memory
from heddle.roofline import Limits
from heddle.state import PAGE_TOKENS
from heddle.step import Failed, Pooled, Sampled, Scored, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from heddle.config import EngineConfig
    from heddle.executor import DeviceMemory, LogitsSummary, ModelShape
    from heddle.executors.graph.forward import Forward
    from heddle.models.decoder import Decoder
    from heddle.sampling_params import SamplingParams
    from heddle.state import StateMemory
    from heddle.step import Binding, Chunk, StepPlan
    from heddle.token_rules import LogitEdit
    from heddle.weights.low_rank import Change

    Float32 = NDArray[np.float32]

_log = logging.getLogger(__name__)

SOURCES = (
    *MODEL_SOURCES,
    "extensions/reference/executor.py",
    "extensions/reference/state_arrays.py",
    "extensions/reference/kv_types.py",
    "extensions/reference/ops.py",
    "weights/mix.py",
)
"""Python code that determines the bits of pages."""


@dataclass(slots=True)
class _Sequence:
    """The sequence in a slot. `unseen` are tokens that its `edits` have not seen yet."""

    binding: Binding
    output: list[int]
    unseen: list[int]
    mu: float | None
    edits: EditState | None = None
    states: list[NDArray[np.float64]] = field(default_factory=list)


class ReferenceExecutor:
    """Runs plans in NumPy; see `heddle.executor.Executor`. `collect` computes the complete step."""

    runs_ahead = False

    def __init__(
        self,
        model: Decoder,
        shape: ModelShape,
        weights: Any,
        config: EngineConfig,
        weight_bytes: int,
        memory: StateMemory,
        head: ReferenceExecutor | None = None,
    ) -> None:
        """`weight_bytes` counts the matrices that matmuls read."""
        self.shape = shape
        self.head = head
        self._kv_type = config.kv_type
        self._most_tokens = config.batch_tokens
        self.memory = memory
        self._pages = PagedMemory(config.kv_type, self.memory)
        self._states = FixedStates(self.memory)
        self._forward: Forward = record(model, weights)
        self.work = model_work(self._forward, weight_bytes, position_bytes(self.memory))
        self.held_bytes: int = weight_bytes + memory.bytes + (head.held_bytes if head else 0)
        self.compute_seconds = 0.0
        self._sequences: dict[int, _Sequence] = {}
        self._submitted: StepPlan | None = None
        self._logits: Float32 | None = None  # sampled last
        self._abandoned = False

    @property
    def page_format(self) -> str:
        size = f"{PAGE_TOKENS} {page_layout(self.memory)}"
        rope = rope_digest(self._forward)
        return f"reference {self._kv_type} {size} {_arithmetic_digest()} {rope}"

    @property
    def summary(self) -> str:
        return (
            f"NumPy {np.__version__} in float32, slowly,"
            f" weights {self.work.weight_bytes / 1e6:,.0f} MB,"
            f" {describe_memory(self.memory, self._kv_type)}"
        )

    def measure_limits(self) -> Limits:
        square, buffer = np.ones((512, 512), np.float32), np.ones(1 << 24, np.float32)
        memory_rate = buffer.nbytes / _least_seconds(buffer.sum)
        return Limits(
            threads=os.cpu_count() or 1,
            isa="numpy",
            multiplication="float32 matmul",
            multiply_rate=512**3 / _least_seconds(lambda: square @ square),
            memory_rate=memory_rate,
            memory_buffer=buffer.nbytes,
            weights_rate=memory_rate,
        )

    def read_page(self, page: int, windows: Sequence[int] = ()) -> memoryview:
        return self._pages.read(page, windows)

    def write_page(self, page: int, content: memoryview, windows: Sequence[int] = ()) -> None:
        self._pages.write(page, content, windows)

    def read_snapshot(self, snapshot: int) -> memoryview:
        return self._states.read(snapshot)

    def write_snapshot(self, snapshot: int, content: memoryview) -> None:
        self._states.write(snapshot, content)

    def make_adapter(self, changes: Mapping[str, Change]) -> ReferenceAdapter:
        check_adaptable(changes, adaptable(self._forward))
        return ReferenceAdapter(changes)

    def submit(self, plan: StepPlan) -> None:
        problem = next(self._problems(plan), None)
        if problem is not None:
            raise EngineFailedError(f"the step was refused: {problem}")
        self._submitted = plan

    def collect(self) -> StepResult:
        plan, self._submitted = self._submitted, None
        assert plan is not None, "a step is submitted before it is collected"
        began = time.perf_counter()
        try:
            with np.errstate(all="ignore"):  # NaN weights show in the results
                return self._compute(plan)
        finally:
            self.compute_seconds += time.perf_counter() - began

    @property
    def device_memory(self) -> DeviceMemory | None:
        return machine_memory()

    def watch(self, failed: Callable[[str], None]) -> None:
        """Nothing: it fails in steps only."""

    def logits_summary(self) -> LogitsSummary | None:
        return None if self._logits is None else summarize(self._logits)

    def abandon(self) -> None:
        self._abandoned = True

    def close(self) -> None:
        if self.head is not None:
            self.head.close()
        for name in ("_submitted", "_pages", "_states", "_forward", "_sequences"):
            vars(self).pop(name, None)

    def _problems(self, plan: StepPlan) -> Iterator[str]:
        """Everything in a plan that is out of range."""
        reads_states = self._forward.inputs.states is not None
        yield from plan_problems(
            plan, self.shape, self.memory, self._most_tokens, reads_states=reads_states
        )
        yield from self._states.problems(plan)

    def _compute(self, plan: StepPlan) -> StepResult:
        for binding in plan.bindings:
            output = list(binding.output)
            sequence = _Sequence(binding, output, list(output), binding.mu)
            self._sequences[binding.slot] = sequence
        for copy in plan.copies:
            self._pages.copy(copy)
        self._states.prepare(plan)
        sampled: list[Sampled | Failed] = []
        scored: list[Scored | Failed] = []
        pooled: list[Pooled | Failed] = []
        kept: list[Float32] = []
        wrong: list[int] = []  # slots with wrong guesses
        for chunk in plan.chunks:
            rows = self._rows(chunk)
            if chunk.keep_states:
                kept.append(np.concatenate([state for state, _ in rows[-chunk.keep_states :]]))
            if chunk.sample:
                outcomes = self._samples(chunk, [row[0] for _, row in rows[chunk.known - 1 :]])
                sampled += outcomes
                if len(outcomes) <= chunk.guesses:
                    wrong.append(chunk.slot)
            if chunk.score is not None:
                scored.append(_scored(chunk, [logits for _, logits in rows]))
            if chunk.pool is not None:
                sequence = self._sequences[chunk.slot]
                states = sequence.states
                states += [state[0].astype(np.float64) for state, _ in rows[chunk.pool.first :]]
                if chunk.pool.complete:
                    params = sequence.binding.params
                    assert isinstance(params, EmbeddingParams), "others pool nothing"
                    pooled.append(_pooled(chunk, states, params))
        self._states.keep(plan)
        for slot in wrong:
            self._states.rewind(slot)
        if self._abandoned:
            raise StepAbandonedError("the step was abandoned")
        return StepResult(tuple(sampled), tuple(scored), tuple(pooled), tuple(kept))

    def _rows(self, chunk: Chunk) -> list[tuple[Float32, Float32]]:
        """State (1, width) and logits (1, vocabulary) of each token."""
        count = len(chunk.tokens)
        if self.shape.causal and (chunk.sight is None or chunk.sight.runs is None):
            return [self._row(chunk, index) for index in range(count)]
        # The tokens see one another.
        cache, all_rows = PagedCache(self._pages, self._states, chunk), range(count)
        run = SequenceChunk(cache, chunk.start, chunk.tokens, chunk.sight)
        positions = range(chunk.start, chunk.start + count)
        batch: Batch[NDArray[Any]] = Batch(*map(np.array, (chunk.tokens, positions, all_rows)))
        states, logits = compute(self._forward, ReferenceOps([run], chunk.adapters), batch)
        return [(states[i : i + 1], logits[i : i + 1]) for i in all_rows]

    def _row(self, chunk: Chunk, index: int) -> tuple[Float32, Float32]:
        """State (1, width) and logits (1, vocabulary) of a token; no rows if nothing reads them."""
        if self._abandoned:
            raise StepAbandonedError("the step was abandoned")
        if index == len(chunk.tokens) - chunk.uncertain:
            self._states.mark(chunk.slot)
        position, cache = chunk.start + index, PagedCache(self._pages, self._states, chunk)
        token = [chunk.tokens[index]]
        wanted = np.arange(1 if _is_wanted(chunk, index) else 0)
        states = None if chunk.states is None else chunk.states[index : index + 1]
        batch: Batch[NDArray[Any]] = Batch(np.array(token), np.array([position]), wanted, states)
        sight = None if chunk.sight is None else chunk.sight.of(index)
        run = SequenceChunk(cache, position, token, sight)
        return compute(self._forward, ReferenceOps([run], chunk.adapters), batch)

    def _samples(self, chunk: Chunk, rows: list[Float32]) -> list[Sampled | Failed]:
        """The outcomes of a chunk. `rows` has the logits of its last known token and guesses."""
        outcomes: list[Sampled | Failed] = []
        for right, logits in enumerate(rows):
            outcomes.append(outcome := self._sample(chunk, logits, right))
            guess = chunk.tokens[chunk.known + right] if right < chunk.guesses else None
            if not isinstance(outcome, Sampled) or outcome.token != guess:
                break
        return outcomes

    def _sample(self, chunk: Chunk, logits: Float32, right: int) -> Sampled | Failed:
        self._logits = logits
        sequence = self._sequences[chunk.slot]
        binding, params = sequence.binding, sequence.binding.params
        assert not isinstance(params, EmbeddingParams), "an embedding samples nothing"
        try:
            edit = _next_edit(sequence)
        except HeddleError as error:
            return Failed(chunk.slot, error)
        except Exception as cause:  # other requests of the step must not fail
            _log.exception("a grammar or a logits processor failed")
            failure = EngineFailedError(
                f"the request's grammar or logits processor failed: {cause}"
            )
            return Failed(chunk.slot, failure)
        if not np.isfinite(logits).all():
            return Failed(chunk.slot, non_finite(chunk, right, logits))
        past = Past(binding.prompt, tuple(sequence.output), binding.rules, sequence.mu, edit)
        if not len(allowed(len(logits), params, past)):
            return Failed(chunk.slot, nothing_allowed(chunk, right))
        try:
            chosen = sample(logits, params, past)
            sequence.mu = _next_mu(logits, params, past, chosen.token)
        except Exception as cause:
            _log.exception("a sampler failed")
            return Failed(chunk.slot, sampler_failed(cause))
        sequence.output.append(chosen.token)
        sequence.unseen.append(chosen.token)
        return Sampled(chunk.slot, chosen.token, chosen.logprob, chosen.top, sequence.mu)


def _next_edit(sequence: _Sequence) -> LogitEdit:
    """The edit of the next token's logits. Raises the errors of grammar and processors."""
    if sequence.edits is None:
        sequence.edits = EditState(sequence.binding.rules, sequence.binding.prompt)
    unseen, sequence.unseen = sequence.unseen, []
    return sequence.edits.next_edit(unseen)


def _next_mu(logits: Float32, params: SamplingParams, past: Past, token: int) -> float | None:
    """Mirostat's bound after `token`; None without mirostat. Greedy sampling does not change it."""
    if params.mirostat != 2:
        return None
    if params.temperature == 0:
        return 2 * params.mirostat_tau if past.mu is None else past.mu
    return adapted_mu(logits, params, past, token)


def _is_wanted(chunk: Chunk, index: int) -> bool:
    """Whether the plan reads the token's state or logits."""
    sampled = chunk.sample and index >= chunk.known - 1
    score, pool = chunk.score, chunk.pool
    scored = score is not None and 0 <= index - score.first < len(score.targets)
    kept = index >= len(chunk.tokens) - chunk.keep_states
    return sampled or scored or kept or (pool is not None and index >= pool.first)


def _scored(chunk: Chunk, rows: Sequence[Float32]) -> Scored | Failed:
    """Log probabilities of the chunk's targets. `rows` has the logits (1, vocabulary) by token."""
    assert chunk.score is not None, "the chunk is to be scored"
    scores = []
    for index, target in enumerate(chunk.score.targets, chunk.score.first):
        (logits,) = rows[index]
        if not np.isfinite(logits).all():
            return Failed(chunk.slot, non_finite(chunk, row=logits))
        logprobs, order = log_softmax(logits), np.argsort(-logits, kind="stable")
        rank = int(np.flatnonzero(order == target)[0]) + 1
        top = tuple((int(id), float(logprobs[id])) for id in order[: chunk.score.top])
        scores.append(PromptLogprob(target, float(logprobs[target]), rank, top))
    return Scored(chunk.slot, tuple(scores))


def _pooled(
    chunk: Chunk, states: Sequence[NDArray[np.float64]], params: EmbeddingParams
) -> Pooled | Failed:
    """The mean of the states, with `unit_length` scaled to length 1. Zeros stay zeros.

    With `Pooling.NONE`, the states one after another.
    """
    if params.pooling is Pooling.NONE:
        vector, scaled = np.concatenate(states), False
    else:
        states = states[:1] if params.pooling is Pooling.CLS else states
        total = np.zeros_like(states[0])
        for state in states:  # in the order of positions
            total += state
        vector, scaled = total / len(states), params.unit_length
    if not np.isfinite(vector).all():
        return Failed(chunk.slot, non_finite(chunk, row=vector))
    length = math.sqrt(math.fsum((vector * vector).tolist())) if scaled else 1.0
    return Pooled(chunk.slot, array("f", (vector / (length or 1.0)).astype(np.float32).tobytes()))


def _least_seconds(work: Callable[[], object]) -> float:
    """The shortest time of five runs."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)


def _arithmetic_digest() -> str:
    """A digest that identifies the code and NumPy's results on this machine."""
    digest = hashlib.sha256(f"{np.__version__} {source_digest(*SOURCES)}".encode())
    angles = np.arange(1 << 12) * 0.7
    values = np.cos(angles).astype(np.float32)
    digest.update(np.sin(angles).tobytes() + np.exp(values).tobytes())
    digest.update((values.reshape(1, -1) @ np.ones((1 << 12, 32), np.float32)).tobytes())
    return digest.hexdigest()
