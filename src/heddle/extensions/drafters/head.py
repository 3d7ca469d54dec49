"""Guesses from a prediction head of the model itself (multi-token prediction, MTP).

The head reads pairs: at position i, token i + 1 and the model's hidden state at position i. It
guesses token i + 2. To guess further, it reads its own state in the place of the model's.

The pairs of the model's own states are the truth. Those of guesses are written over. The head sees
the last tokens of the prompt that the model computes in one step with the first sampled token, and
all later ones. It has no states of tokens that came from the prefix cache. What it does not see
costs right guesses, and nothing else. Positions count from the first pair, because attention sees
only distances.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.drafters.executor_drafter import ExecutorDrafter, Mirror
from heddle.extensions.drafters.settings import DrafterSettings
from heddle.step import HEAD_TOKENS, HEAD_TOKENS_OF_SLOT, Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from heddle.config import EngineConfig
    from heddle.executor import Executor
    from heddle.loading.loaded_model import LoadedModel
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.speculation import Speculator
    from heddle.step import States, StepPlan, StepResult


@dataclass(slots=True, eq=False)
class _Mirror(Mirror):
    """One sequence in the head.

    Attributes:
        first: position of the first pair in the pages.
        computed: number of pairs in the pages whose states are the model's own.
        waiting: states of the following positions, still to be computed.
        noted: first position and states of what the last step computed, wrong guesses included.
        state: the head's state after its last guess.
    """

    first: int = 0
    computed: int = 0
    waiting: list[States] = field(default_factory=list)
    noted: tuple[int, States | None] = (0, None)
    state: States | None = None

    @property
    def next(self) -> int:
        """The position whose state comes next."""
        return self.first + self.computed + len(self.waiting)

    def take_noted(self) -> None:
        """Keep the states of tokens that have a token after them.

        A wrong guess has none: the step sampled the token at its place, and no other. If states
        are missing between, or too many wait, the head forgets all earlier pairs.
        """
        first, states = self.noted
        self.noted = 0, None
        if states is None:
            return
        if first > self.next:
            self.begin_at(first)
        # A preempted sequence is computed again, so some may be known.
        self.waiting.extend(states[self.next - first : self.sequence.total - 1 - first])
        if len(self.waiting) > HEAD_TOKENS:
            kept = self.waiting[-HEAD_TOKENS:]
            self.begin_at(self.next - HEAD_TOKENS)
            self.waiting = kept

    def begin_at(self, first: int) -> None:
        """Forget all pairs. The next one is that of position `first`."""
        self.first, self.computed, self.waiting = first, 0, []


class HeadDrafter(ExecutorDrafter[_Mirror]):
    """A prediction head that guesses; see `ExecutorDrafter`."""

    name = "mtp"
    label = "the model's prediction head"

    def __init__(self, executor: Executor, slots: int) -> None:
        super().__init__(executor, slots)
        self._asked: list[tuple[_Mirror, Chunk]] = []

    def ask(self, plan: StepPlan, slots: Many[Sequence | None], speculator: Speculator) -> StepPlan:
        """Ask for the hidden states of the tokens after which the step samples."""
        chunks, self._asked = [], []
        for chunk in plan.chunks:
            sequence = slots[chunk.slot]
            mirror = None
            if chunk.sample and sequence is not None and speculator.prepare(sequence):
                mirror = self._mirrors.get(sequence.id)
            if mirror is None or self._failed:
                chunks.append(chunk)
                continue
            count = min(len(chunk.tokens), HEAD_TOKENS)  # more than a step has guesses
            chunks.append(replace(chunk, keep_states=count))
            self._asked.append((mirror, chunks[-1]))
        return replace(plan, chunks=tuple(chunks)) if self._asked else plan

    def note(self, result: StepResult) -> None:
        """Take the hidden states."""
        for (mirror, chunk), states in zip(self._asked, result.states, strict=True):
            mirror.noted = chunk.start + len(chunk.tokens) - len(states), states
        self._asked = []

    def _mirror(self, sequence: Sequence) -> _Mirror:
        return _Mirror(sequence)

    def _forget(self, mirror: _Mirror) -> None:
        mirror.begin_at(0)
        mirror.noted = 0, None

    def _rewind(self, mirror: _Mirror) -> None:
        mirror.take_noted()
        mirror.state = None
        self._pages.shrink(mirror.table, mirror.computed)

    def _catch_up(self, mirror: _Mirror) -> bool:
        if not mirror.waiting or mirror.next != mirror.sequence.total - 1:
            return False  # the state of the newest token's predecessor is missing
        few = len(mirror.waiting) - 1
        if few >= HEAD_TOKENS_OF_SLOT and self._pages.grow(mirror.table, mirror.computed + few):
            chunk = self._pairs(mirror, few)
            self._run((), (replace(chunk, sample=False, keep_states=0),))
        return len(mirror.waiting) <= HEAD_TOKENS_OF_SLOT

    def _grow(self, mirror: _Mirror) -> bool:
        further = len(mirror.waiting) or len(mirror.guesses)
        return self._pages.grow(mirror.table, mirror.computed + further)

    def _chunk(self, mirror: _Mirror) -> Chunk:
        if mirror.waiting:
            return self._pairs(mirror, len(mirror.waiting))
        assert mirror.state is not None, "the first guess has one"
        start = mirror.computed + len(mirror.guesses) - 1
        pages, states = mirror.table.pages, mirror.state
        return Chunk(
            mirror.slot, start, mirror.guesses[-1:], pages, True, keep_states=1, states=states
        )

    def _pairs(self, mirror: _Mirror, count: int) -> Chunk:
        """A chunk with the next `count` pairs. They count as computed."""
        start, states = mirror.computed, np.stack(mirror.waiting[:count])
        first = mirror.first + start + 1
        tokens = mirror.sequence.tokens[first : first + count]
        mirror.computed += count
        del mirror.waiting[:count]
        pages = mirror.table.pages
        return Chunk(mirror.slot, start, tokens, pages, True, keep_states=1, states=states)

    def _take_states(self, mirrors: list[_Mirror], result: StepResult) -> None:
        for mirror, state in zip(mirrors, result.states, strict=True):
            mirror.state = state


def batch_drafter_of(model: LoadedModel, config: EngineConfig) -> HeadDrafter | None:
    """The model's own head, ready to guess; None if it has none, or a draft model is to guess."""
    head = model.executor.head
    drafted = config.of(DrafterSettings).draft
    return None if head is None or drafted else HeadDrafter(head, config.slots)
