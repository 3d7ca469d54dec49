"""The base of drafters that compute guesses with an executor of their own.

Such a drafter follows the sequences of the large model: it has its own slots and pages, computes
what it needs of their tokens, and continues them by a few tokens before each step of the large
model. It samples with the seed and the index of the token that it guesses. So a guess is right more
often than two independent draws would agree, and at temperature 0 wherever both prefer the same
token.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from heddle.cache.cache import Cache
from heddle.cache.page_tables import PageTable
from heddle.closing import Closing
from heddle.sampling_params import SamplingParams
from heddle.step import Binding, Sampled, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Many

    from heddle.executor import Executor
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.speculation import Speculator
    from heddle.step import Chunk, StepResult

_log = logging.getLogger(__name__)

_RECENT = 9


@dataclass(slots=True, eq=False)
class Mirror:
    """One sequence in the batch drafter; a `Drafter`.

    Attributes:
        slot: its slot in the batch drafter; -1: none yet.
        table: its pages there.
        guesses: guesses after the first `total` tokens of the sequence.
    """

    sequence: Sequence
    slot: int = -1
    table: PageTable = field(default_factory=PageTable)
    guesses: list[int] = field(default_factory=list)
    total: int = 0

    def append(self, tokens: Many[int]) -> None:
        """Nothing to do: the sequence has its tokens."""

    def guess(self, most: int) -> tuple[Many[int], int]:
        """The guesses that `advance` made, and grade 0: later guesses count by place."""
        current = self.total == self.sequence.total
        return (self.guesses[:most] if current else (), 0)


M = TypeVar("M", bound=Mirror)


class ExecutorDrafter(Closing, Generic[M]):
    """A `BatchDrafter` with an executor of its own.

    Attributes:
        name: the name of the drafter in requests.
        label: name for people.
    """

    name: ClassVar[str]
    label: ClassVar[str]

    def __init__(self, executor: Executor, slots: int) -> None:
        self._executor = executor
        self._pages = Cache(executor.memory, enabled=False).pages
        self._free = list(range(slots))
        self._mirrors: dict[int, M] = {}  # by id of the sequence
        self._seconds: dict[int, deque[float]] = {}  # of steps, by number of sequences
        self._failed = False

    def drafter(self, sequence: Sequence) -> M | None:
        """A drafter for a sequence; None after a failure, and for a sequence that is too long."""
        if self._failed or sequence.limit > self._executor.shape.context:
            return None
        mirror = self._mirrors[sequence.id] = self._mirror(sequence)
        return mirror

    def ask(self, plan: StepPlan, slots: Many[Sequence | None], speculator: Speculator) -> StepPlan:
        """The plan of the large model, with what this drafter wants to know of its results."""
        return plan

    def note(self, result: StepResult) -> None:
        """Take what `ask` asked for."""

    def advance(self, sequences: Iterable[Sequence | None], speculator: Speculator) -> None:
        """Make guesses for the sequences that decode, before the next step of the large model."""
        held = {one.id for one in sequences if one is not None and not one.ended}
        mirrors = []
        for id, mirror in list(self._mirrors.items()):
            if mirror.sequence.ended:
                del self._mirrors[id]
            if id not in held:
                self._release(mirror)
            elif mirror.sequence.generating and not mirror.sequence.waits:
                mirrors.append(mirror)
        if not mirrors or self._failed:
            return
        try:
            self._draft(mirrors, speculator)
        except Exception:
            _log.exception("%s failed; it makes no more guesses", self.label)
            self._failed = True
            for mirror in mirrors:
                mirror.guesses = []

    def close(self) -> None:
        """Free the executor."""
        self._executor.close()

    @abstractmethod
    def _mirror(self, sequence: Sequence) -> M:
        """The state to keep for a new sequence."""

    @abstractmethod
    def _forget(self, mirror: M) -> None:
        """Forget what was computed. The sequence has ended, or was preempted and comes back."""

    @abstractmethod
    def _rewind(self, mirror: M) -> None:
        """Forget what was computed of wrong guesses. The mirror still has its last guesses."""

    @abstractmethod
    def _catch_up(self, mirror: M) -> bool:
        """Compute tokens that the large model has already. True if only few are left."""

    @abstractmethod
    def _grow(self, mirror: M) -> bool:
        """Get pages for the next chunk; False if there are none left."""

    @abstractmethod
    def _chunk(self, mirror: M) -> Chunk:
        """The chunk whose sampled token is the next guess. It counts as computed."""

    def _take_states(self, mirrors: list[M], result: StepResult) -> None:
        """Keep the hidden states of a step, if chunks ask for them."""

    def _draft(self, mirrors: list[M], speculator: Speculator) -> None:
        ready = []
        for mirror in mirrors:
            self._rewind(mirror)
            mirror.guesses, mirror.total = [], mirror.sequence.total
            if mirror.slot < 0 and self._free:
                mirror.slot = self._free.pop()
            if mirror.slot >= 0 and self._catch_up(mirror):
                ready.append(mirror)
        seconds = self._step_seconds(len(ready))
        most = speculator.draft_length(self.name, [one.sequence for one in ready], seconds)
        bindings = tuple(binding_of(mirror) for mirror in ready)
        for _ in range(most):
            ready = [one for one in ready if self._has_room(one)]
            if not ready:
                return
            began = time.perf_counter()
            self._guess(ready, bindings)
            if not bindings:
                recent = self._seconds.setdefault(len(ready), deque(maxlen=_RECENT))
                recent.append(time.perf_counter() - began)
            bindings = ()

    def _step_seconds(self, sequences: int) -> float | None:
        """Expected time of a step of the batch drafter; None before any was measured."""
        if not self._seconds:
            return None
        nearest = min(self._seconds, key=lambda seen: abs(seen - sequences))
        return median(self._seconds[nearest])

    def _has_room(self, mirror: M) -> bool:
        made = len(mirror.guesses)
        return mirror.total + made < mirror.sequence.limit - 1 and self._grow(mirror)

    def _guess(self, mirrors: list[M], bindings: tuple[Binding, ...]) -> None:
        """Add a guess to each sequence."""
        slots = {mirror.slot for mirror in mirrors}
        used = tuple(one for one in bindings if one.slot in slots)
        result = self._run(used, tuple(self._chunk(mirror) for mirror in mirrors))
        self._take_states(mirrors, result)
        for mirror, outcome in zip(mirrors, result.sampled, strict=True):
            if isinstance(outcome, Sampled):
                mirror.guesses.append(outcome.token)

    def _run(self, bindings: tuple[Binding, ...], chunks: tuple[Chunk, ...]) -> StepResult:
        self._executor.submit(StepPlan(bindings, chunks))
        return self._executor.collect()

    def _release(self, mirror: M) -> None:
        """Give back the pages and the slot of a sequence that has no slot in the large model."""
        self._pages.release(mirror.table)
        self._forget(mirror)
        if mirror.slot >= 0:
            self._free.append(mirror.slot)
            mirror.slot = -1


def binding_of(mirror: Mirror) -> Binding:
    """Binds a sequence to its slot in the batch drafter, with the draws of the large model.

    Grammars and penalties are left out: the large model applies them.
    """
    sequence, asked = mirror.sequence, mirror.sequence.params
    assert isinstance(asked, SamplingParams), "an embedding has no output"
    params = SamplingParams(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        seed=asked.seed,
    )
    prompt = sequence.prompt_tokens
    return Binding(mirror.slot, params, sequence.tokens[:prompt], sequence.tokens[prompt:])
