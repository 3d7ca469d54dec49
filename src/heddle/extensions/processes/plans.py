"""Plans and results as messages, for the process of a device and for ranks.

Most pages of a sequence are those of its last step, so only the others travel.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from msgspec import Meta, convert

from heddle.embedding import EmbeddingParams
from heddle.errors import EngineFailedError
from heddle.executor import DeviceMemory
from heddle.extensions.processes.children.messages import Message, Part
from heddle.extensions.processes.failures import Failure
from heddle.extensions.processes.rows import Rows
from heddle.extensions.processes.rules import Rules
from heddle.outputs import PromptLogprob
from heddle.sampling_params import SamplingParams
from heddle.step import (
    Binding,
    Chunk,
    Deferred,
    Failed,
    PageCopy,
    Pool,
    Pooled,
    Sampled,
    Scored,
    Scoring,
    StateCopy,
    StepPlan,
    StepResult,
    WindowPages,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from heddle.extensions.processes.adapters import HeldAdapters, SentAdapters
    from heddle.extensions.processes.rules import RulesReader, RulesWriter
    from heddle.step import Outcome

Executor = Annotated[int, Meta(ge=0, le=1)]
"""The number of an executor: 1 is that of the head."""


class SlotBinding(Part, frozen=True):
    """A :class:`Binding`, with tokens as C integers.

    Of the parameters only those travel that differ from the defaults: to check all of them again,
    as their class does, takes 0.2 ms.
    """

    slot: int
    is_embedding: bool
    params: dict[str, Any]
    prompt: memoryview
    output: memoryview
    rules: Rules
    mu: float | None


class SlotChunk(Part, frozen=True):
    """A :class:`Chunk`. Its first pages are the first `same` pages of the slot's chunk before."""

    slot: int
    start: int
    tokens: list[int]
    same: int
    pages: list[int]
    sample: bool
    score: Scoring | None
    pool: Pool | None
    windows: list[WindowPages]
    guesses: int
    uncertain: int
    keep_states: int
    states: Rows | None
    adapters: list[tuple[int, float]]


class Step(Message, frozen=True):
    """A :class:`StepPlan`, and the number of its step.

    Attributes:
        dropped: numbers of shared objects that no request has any more.
        dropped_adapters: numbers of adapters that nothing refers to any more.
        rewound: slots whose fixed-size state goes back before the step, for ranks.
    """

    executor: int
    number: int
    dropped: list[int]
    dropped_adapters: list[int]
    bindings: list[SlotBinding]
    chunks: list[SlotChunk]
    copies: tuple[PageCopy, ...]
    clears: tuple[int, ...]
    restores: tuple[StateCopy, ...]
    snapshots: tuple[StateCopy, ...]
    rewound: tuple[int, ...] = ()


class PlanWriter:
    """Writes the plans of one executor, in their order.

    Without `rules` it leaves out bindings: ranks other than rank 0 sample nothing.
    """

    def __init__(
        self, rules: RulesWriter | None = None, adapters: SentAdapters | None = None
    ) -> None:
        self._rules = rules
        self._adapters = adapters
        self._pages: dict[int, list[int]] = {}  # of each slot, in its last chunk

    def write(
        self, plan: StepPlan, number: int = 0, executor: int = 0, rewound: tuple[int, ...] = ()
    ) -> Step:
        """The message of a step. `number` is that of the step."""
        rules = self._rules
        return Step(
            executor,
            number,
            rules.take_dropped() if rules else [],
            self._adapters.take_dropped() if self._adapters else [],
            [_binding(one, rules) for one in plan.bindings] if rules else [],
            [self._chunk(one) for one in plan.chunks],
            plan.copies,
            plan.clears,
            plan.restores,
            plan.snapshots,
            rewound,
        )

    def _chunk(self, one: Chunk) -> SlotChunk:
        assert one.sight is None, "a device in a process of its own sees no pictures"
        pages, kept = list(one.pages), self._pages.get(one.slot, [])
        same = len(kept) if pages[: len(kept)] == kept else 0
        self._pages[one.slot] = pages
        return SlotChunk(
            one.slot,
            one.start,
            [*one.tokens],
            same,
            pages[same:],
            one.sample,
            one.score,
            one.pool,
            [*one.windows],
            one.guesses,
            one.uncertain,
            one.keep_states,
            None if one.states is None else Rows.of(one.states),
            [(use.adapter.number, use.factor) for use in one.adapters],
        )


class PlanReader:
    """Reads what a :class:`PlanWriter` of each executor wrote, in the same order."""

    def __init__(
        self, rules: RulesReader | None = None, adapters: HeldAdapters | None = None
    ) -> None:
        self._rules = rules
        self._adapters = adapters
        self._pages: dict[tuple[int, int], list[int]] = {}

    def read(self, step: Step) -> StepPlan:
        """The plan."""
        plan = StepPlan(
            tuple([self._binding(one) for one in step.bindings]),
            tuple([self._chunk(step.executor, one) for one in step.chunks]),
            step.copies,
            step.clears,
            step.restores,
            step.snapshots,
        )
        if self._rules is not None:
            self._rules.drop(step.dropped)
        if self._adapters is not None:
            self._adapters.drop(step.dropped_adapters)
        return plan

    def _binding(self, one: SlotBinding) -> Binding:
        assert self._rules is not None
        defaults = _EMBEDDING if one.is_embedding else _SAMPLING
        prompt, output = _unpacked(one.prompt), _unpacked(one.output)
        params = _with_changes(defaults, one.params)
        return Binding(one.slot, params, prompt, output, self._rules.read(one.rules), one.mu)

    def _chunk(self, executor: int, one: SlotChunk) -> Chunk:
        # A new list: the last one may belong to a step that is still computed.
        pages = [*self._pages.get((executor, one.slot), ())[: one.same], *one.pages]
        self._pages[executor, one.slot] = pages
        return Chunk(
            one.slot,
            one.start,
            one.tokens,
            pages,
            one.sample,
            one.score,
            one.pool,
            one.windows,
            one.guesses,
            one.uncertain,
            one.keep_states,
            None if one.states is None else one.states.array,
            self._adapters.uses(one.adapters) if self._adapters is not None else (),
        )


# --- results -------------------------------------------------------------------------------------


class SlotFailure(Message, frozen=True):
    """A :class:`Failed` outcome."""

    slot: int
    failure: Failure


class SlotScores(Message, frozen=True):
    """A :class:`Scored`."""

    slot: int
    scores: tuple[PromptLogprob, ...]


class SlotVector(Message, frozen=True):
    """A :class:`Pooled`."""

    slot: int
    vector: memoryview


class Result(Message, frozen=True):
    """The result of an executor's oldest step, or its failure.

    Attributes:
        seconds: `compute_seconds` of the executor.
        memory: the memory of the device, if it was read again.
        sampled: a slot's number stands for :class:`Deferred`. Its future stays in the child.
    """

    executor: Executor
    failure: Failure | None = None
    seconds: float = 0.0
    memory: DeviceMemory | None = None
    sampled: tuple[Sampled | SlotFailure | int, ...] = ()
    scored: tuple[SlotScores | SlotFailure, ...] = ()
    pooled: tuple[SlotVector | SlotFailure, ...] = ()
    states: tuple[Rows, ...] = ()


def write_result(
    executor: int, result: StepResult, seconds: float, memory: DeviceMemory | None
) -> Result:
    """The message of a result."""
    return Result(
        executor,
        None,
        seconds,
        memory,
        tuple([_written(one) for one in result.sampled]),
        tuple([_written(one) for one in result.scored]),
        tuple([_written(one) for one in result.pooled]),
        tuple([Rows.of(one) for one in result.states]),
    )


class Expected:
    """The results that a plan asks for. The child is trusted less: they are compared."""

    def __init__(self, plan: StepPlan, vocabulary: int) -> None:
        self._sampled = {one.slot: 1 + one.guesses for one in plan.chunks if one.sample}
        self._scored = [one.slot for one in plan.chunks if one.score]
        self._pooled = [one.slot for one in plan.chunks if one.pool and one.pool.complete]
        self._states = [one.keep_states for one in plan.chunks if one.keep_states]
        self._vocabulary = vocabulary

    def read(self, result: Result, late: Callable[[int], Future[None] | None]) -> StepResult:
        """The result in a message. `late` has the future of a deferred slot.

        Raises:
            EngineFailedError: the plan did not ask for such a result.
        """
        read = StepResult(
            tuple([_read(one, late) for one in result.sampled]),
            tuple([_read(one, late) for one in result.scored]),
            tuple([_read(one, late) for one in result.pooled]),
            tuple([one.array for one in result.states]),
        )
        if not (
            self._are_sampled(read.sampled)
            and [one.slot for one in read.scored] == self._scored
            and [one.slot for one in read.pooled] == self._pooled
            and [len(one) for one in read.states] == self._states
        ):
            raise EngineFailedError("the process of a device sent the result of another plan")
        return read

    def _are_sampled(self, outcomes: Sequence[Sampled | Failed | Deferred]) -> bool:
        left = dict(self._sampled)
        for one in outcomes:
            left[one.slot] = left.get(one.slot, 0) - 1
            if left[one.slot] < 0:
                return False
            if isinstance(one, Sampled) and not 0 <= one.token < self._vocabulary:
                return False
        return len({one.slot for one in outcomes}) == len(self._sampled)


def _written(one: Outcome) -> Any:
    match one:
        case Sampled():
            return one
        case Deferred():
            return one.slot
        case Failed():
            return SlotFailure(one.slot, Failure.of(one.error))
        case Scored():
            return SlotScores(one.slot, one.scores)
        case Pooled():
            return SlotVector(one.slot, memoryview(one.vector).cast("B"))


def _read(one: Any, late: Callable[[int], Future[None] | None]) -> Any:
    match one:
        case Sampled():
            return one
        case SlotFailure():
            return Failed(one.slot, one.failure.error)
        case SlotScores():
            return Scored(one.slot, one.scores)
        case SlotVector():
            return Pooled(one.slot, array("f", one.vector.tobytes()))
    ready = late(one)
    if ready is None:
        raise EngineFailedError(f"the process of a device deferred slot {one}, which is not late")
    return Deferred(one, ready)


def _binding(one: Binding, rules: RulesWriter) -> SlotBinding:
    is_embedding = isinstance(one.params, EmbeddingParams)
    params = _changes(one.params, _EMBEDDING if is_embedding else _SAMPLING)
    for name in ("grammar", "extensions"):  # `rules` stand for them
        params.pop(name, None)
    prompt, output = _packed(one.prompt), _packed(one.output)
    return SlotBinding(
        one.slot, is_embedding, params, prompt, output, rules.write(one.rules), one.mu
    )


_SAMPLING, _EMBEDDING = SamplingParams(), EmbeddingParams()
_TYPES = {type(one): get_type_hints(type(one)) for one in (_SAMPLING, _EMBEDDING)}


def _changes(params: Any, defaults: Any) -> dict[str, Any]:
    """The fields that differ from the defaults."""
    names = _TYPES[type(defaults)]
    return {
        name: getattr(params, name)
        for name in names
        if getattr(params, name) != getattr(defaults, name)
    }


def _with_changes(defaults: Any, changes: dict[str, Any]) -> Any:
    """The parameters whose changes these are."""
    types = _TYPES[type(defaults)]
    return replace(
        defaults, **{name: convert(value, types[name]) for name, value in changes.items()}
    )


def _packed(tokens: Sequence[int]) -> memoryview:
    return memoryview(array("i", tokens)).cast("B")


def _unpacked(content: memoryview) -> list[int]:
    return content.cast("i").tolist()
