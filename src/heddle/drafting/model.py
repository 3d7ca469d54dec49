"""Guesses from a small model with the same vocabulary.

The small model follows the sequences of the large one: it has its own pages, computes their tokens,
and continues them by a few tokens before each step of the large model. It samples with the seed and
the index of the token that it guesses. So a guess is right more often than two independent draws
would agree, and at temperature 0 wherever both models prefer the same token.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from heddle.cache.manager import CacheManager, PageTable
from heddle.step import Binding, Chunk, Sampled, StepPlan
from heddle.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Many

    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.speculation import Speculator
    from heddle.step import Executor

_log = logging.getLogger(__name__)

NAME = "model"
_CATCH_UP = 64
"""Most tokens of a sequence that the small model computes before one step of the large model."""
_RECENT = 9


@dataclass(slots=True, eq=False)
class _Mirror:
    """One sequence in the small model; a `Drafter`.

    Attributes:
        slot: its slot in the small model.
        table: its pages there.
        computed: tokens whose keys and values are in the pages.
        guesses: guesses after the first `total` tokens of the sequence.
    """

    sequence: Sequence
    slot: int = -1
    table: PageTable = field(default_factory=PageTable)
    computed: list[int] = field(default_factory=list)
    guesses: list[int] = field(default_factory=list)
    total: int = 0

    def append(self, tokens: Many[int]) -> None:
        """Nothing to do: the sequence has its tokens."""

    def guess(self, most: int) -> tuple[Many[int], int]:
        """The guesses that `DraftModel.advance` made, and grade 0: later guesses count by place."""
        current = self.total == self.sequence.total
        return (self.guesses[:most] if current else (), 0)

    def keep_common(self) -> None:
        """Forget the computed tokens from the first wrong guess on.

        At least the newest token is computed again, because the first guess follows it.
        """
        tokens, computed = self.sequence.tokens, self.computed
        most = min(len(computed), len(tokens) - 1)
        count = min(self.total, most)  # the guesses begin at `total`
        while count < most and computed[count] == tokens[count]:
            count += 1
        del computed[count:]


class DraftModel:
    """Drafts for the sequences of an engine. Only the engine thread uses it.

    A failure of the small model ends its guesses, and nothing else.
    """

    def __init__(self, executor: Executor, slots: int) -> None:
        self._executor = executor
        self._cache = CacheManager(executor.memory, enabled=False)
        self._free = list(range(slots))
        self._mirrors: dict[int, _Mirror] = {}  # by id of the sequence
        self._seconds: dict[int, deque[float]] = {}  # of steps, by number of sequences
        self._failed = False

    def drafter(self, sequence: Sequence) -> _Mirror | None:
        """A drafter for a sequence; None if the small model has failed or cannot hold it."""
        if self._failed or sequence.limit > self._executor.shape.context:
            return None
        mirror = self._mirrors[sequence.id] = _Mirror(sequence)
        return mirror

    def advance(self, sequences: Iterable[Sequence | None], speculator: Speculator) -> None:
        """Make guesses for the sequences that decode, before the next step of the large model."""
        held = {one.id: one for one in sequences if one is not None and not one.ended}
        for id in [id for id in self._mirrors if id not in held]:
            self._drop(self._mirrors.pop(id))
        mirrors = [
            mirror
            for id, mirror in self._mirrors.items()
            if held[id].generating and not held[id].waits
        ]
        if not mirrors or self._failed:
            return
        try:
            self._draft(mirrors, speculator)
        except Exception:
            _log.exception("the draft model failed; it makes no more guesses")
            self._failed = True
            for mirror in mirrors:
                mirror.guesses = []

    def close(self) -> None:
        """Free the small model."""
        self._executor.close()

    def _draft(self, mirrors: list[_Mirror], speculator: Speculator) -> None:
        ready = []
        for mirror in mirrors:
            mirror.keep_common()
            self._cache.shrink(mirror.table, len(mirror.computed))
            mirror.guesses, mirror.total = [], mirror.sequence.total
            if mirror.slot < 0 and self._free:
                mirror.slot = self._free.pop()
            if mirror.slot >= 0 and self._catch_up(mirror):
                ready.append(mirror)
        seconds = self._step_seconds(len(ready))
        most = speculator.draft_length(NAME, [one.sequence for one in ready], seconds)
        bindings = tuple(_binding(mirror) for mirror in ready)
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
        """Expected time of a step of the small model; None before any was measured."""
        if not self._seconds:
            return None
        nearest = min(self._seconds, key=lambda seen: abs(seen - sequences))
        return median(self._seconds[nearest])

    def _catch_up(self, mirror: _Mirror) -> bool:
        """Compute tokens that the large model has already. True if only few are left."""
        tokens, start = mirror.sequence.tokens, len(mirror.computed)
        if len(tokens) - start <= _CATCH_UP:
            return True
        part = tokens[start : start + _CATCH_UP]
        if self._cache.grow(mirror.table, start + len(part)):
            chunk = Chunk(mirror.slot, start, part, mirror.table.pages, sample=False)
            chunk = self._with_windows(mirror, chunk)
            self._executor.submit(StepPlan((_binding(mirror),), (chunk,)))
            self._executor.collect()
            mirror.computed += part
        return False

    def _has_room(self, mirror: _Mirror) -> bool:
        total = mirror.total + len(mirror.guesses)
        return total < mirror.sequence.limit - 1 and self._cache.grow(mirror.table, total)

    def _guess(self, mirrors: list[_Mirror], bindings: tuple[Binding, ...]) -> None:
        """Add a guess to each sequence."""
        chunks = []
        for mirror in mirrors:
            start = len(mirror.computed)
            part = [*mirror.sequence.tokens, *mirror.guesses][start:]
            if self._cache.has_windows:  # wrong guesses are computed again: keep what they see
                first = min(start, mirror.total - 1)
                self._cache.give_back(mirror.table, mirror.computed, first)
            chunk = Chunk(mirror.slot, start, part, mirror.table.pages, sample=True)
            chunks.append(self._with_windows(mirror, chunk))
            mirror.computed += part
        slots = {mirror.slot for mirror in mirrors}
        used = tuple(one for one in bindings if one.slot in slots)
        self._executor.submit(StepPlan(used, tuple(chunks)))
        result = self._executor.collect()
        for mirror, outcome in zip(mirrors, result.sampled, strict=True):
            if isinstance(outcome, Sampled):
                mirror.guesses.append(outcome.token)

    def _with_windows(self, mirror: _Mirror, chunk: Chunk) -> Chunk:
        if not mirror.table.windows:
            return chunk
        return Chunk(
            chunk.slot,
            chunk.start,
            chunk.tokens,
            chunk.pages,
            chunk.sample,
            windows=mirror.table.windows,
        )

    def _drop(self, mirror: _Mirror) -> None:
        self._cache.release(mirror.table)
        if mirror.slot >= 0:
            self._free.append(mirror.slot)


def _binding(mirror: _Mirror) -> Binding:
    """Binds a sequence to its slot in the small model, with the draws of the large model.

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
