"""Grammars and logits processors of the slots of an executor, and the edits for their samplers.

An edit depends on the tokens before it, and not on the step's logits. So threads make edits while
the step computes. If a slot's edit is late, the slot gets no token in this step: its sampler finds
no allowed token and keeps its state. A later step computes the same logits again.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from heddle.errors import EngineFailedError, HeddleError
from heddle.executors.cpu.mask_threads import MaskTask, MaskThreads
from heddle.executors.edit_state import EditState
from heddle.token_rules import NO_EDIT, LogitEdit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from heddle.step import Binding, Chunk

_log = logging.getLogger(__name__)

_NOTHING = LogitEdit(b"\0")
"""An edit that allows no token: its sampler chooses no token and keeps its state."""


class EditedSampler(Protocol):
    """A sampler that takes edits."""

    def edit(self, *edits: LogitEdit) -> None:
        """Set the edits for the next pick and for those after each guess; none: no edits."""
        ...


class EditSource(Protocol):
    """Edits of the slots of an executor. Only the executor's thread calls it."""

    def bind(self, binding: Binding) -> None:
        """Give the binding's slot the grammar and the processors of the binding, if it has any."""
        ...

    def begin_edits(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, EditedSampler]
    ) -> Callable[[], None] | None:
        """Begin to make the edits of these chunks. `samplers` are by slot.

        Returns a function that waits for the edits and gives them to the samplers; None if no slot
        has any.
        """
        ...

    def late(self, slot: int) -> Future[None] | None:
        """A future that is done when the slot's late edit is ready; None if it was not late."""
        ...

    def failure(self, slot: int) -> HeddleError | None:
        """The error of the slot's edit; None if there was no error."""
        ...

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        """Record that the slot's sequence continues with `tokens`."""
        ...


class _SlotEdits:
    """The edits of a slot's sequence."""

    def __init__(self, binding: Binding) -> None:
        self.failure: HeddleError | None = None
        # Edits for the next token and after each guess; valid when `task` is done.
        self.edits = [NO_EDIT]
        self.task: MaskTask | None = None  # the work that makes the edits; None after its token
        self.late: Future[None] | None = None  # done when the late edit is ready
        self._output = list(binding.output)
        self._seen = 0  # leading tokens of the output that `_state` has seen
        self._guessed: list[int] = []  # guesses that `_state` has seen after the output
        self._begin = partial(EditState, binding.rules, binding.prompt)
        self._state: EditState | None = None

    def begin(self, guesses: Sequence[int]) -> MaskTask | None:
        """New work that makes the edits; None if work for the next token has already begun."""
        if self.task is not None:
            return None
        self.task = MaskTask(partial(self._make, guesses))
        return self.task

    def edits_for(self, guesses: Sequence[int]) -> list[LogitEdit]:
        """The edits that are right for these guesses. Late edits may be those of others."""
        return self.edits[: 1 + _common(guesses, self._guessed)]

    def give_up(self, task: MaskTask, cause: Exception) -> None:
        """Fail: no thread does the work."""
        self.failure = EngineFailedError(f"no thread makes the request's masks: {cause}")
        task.given_up = True
        task.run()

    def observe(self, tokens: Sequence[int]) -> None:
        """Record that the sequence continues with `tokens`. Confirmed guesses are among them."""
        self.task = None
        guessed, self._guessed = self._guessed, []
        right = _common(guessed, tokens)
        self._output += tokens
        self._seen += right
        wrong = len(guessed) - right
        if wrong and self._state is not None and not self._state.rewind(wrong):
            self._state, self._seen = None, 0

    def _make(self, guesses: Sequence[int]) -> None:
        """Set `edits`. An error sets `failure`."""
        self.edits = [NO_EDIT]
        try:
            if self._state is None:
                self._state = self._begin()
            unseen, self._seen = self._output[self._seen :], len(self._output)
            self.edits = [self._state.next_edit(unseen)]
        except HeddleError as error:
            self.failure = error
        except Exception as cause:  # other requests of the step must not fail too
            _log.exception("a grammar or a logits processor failed")
            self.failure = EngineFailedError(
                f"the request's grammar or logits processor failed: {cause}"
            )
        else:
            self._add_edits(self._state, guesses)

    def _add_edits(self, state: EditState, guesses: Sequence[int]) -> None:
        """Add the edits after the guesses, as far as the grammar allows the guesses.

        An edit that cannot be made is no failure: the guess before it may be wrong.
        """
        for guess in guesses:
            if not _allows(self.edits[-1].mask, guess):
                return
            try:
                edit = state.next_edit((guess,))
            except Exception:
                self._state, self._seen, self._guessed = None, 0, []
                del self.edits[1:]
                return
            self._guessed.append(guess)
            self.edits.append(edit)


class LogitEdits:
    """Makes edits in this process; see :class:`EditSource`."""

    def __init__(self) -> None:
        self._slots: dict[int, _SlotEdits] = {}
        self._threads = MaskThreads()

    def bind(self, binding: Binding) -> None:
        last = self._slots.pop(binding.slot, None)
        if last is not None and last.task is not None:
            last.task.given_up = True
        if binding.rules.edits_logits:
            self._slots[binding.slot] = _SlotEdits(binding)

    def begin_edits(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, EditedSampler]
    ) -> Callable[[], None] | None:
        wanted = [
            (slot_edits, samplers[chunk.slot], chunk.tokens[len(chunk.tokens) - chunk.guesses :])
            for chunk in chunks
            if (slot_edits := self._slots.get(chunk.slot)) is not None
        ]
        for slot_edits, _, guesses in wanted:
            if (task := slot_edits.begin(guesses)) is not None:
                try:
                    self._threads.begin(task)
                except RuntimeError as cause:  # other requests of the step must not fail
                    slot_edits.give_up(task, cause)
        return partial(self._fill, wanted) if wanted else None

    def _fill(self, wanted: list[tuple[_SlotEdits, EditedSampler, Sequence[int]]]) -> None:
        tasks = [one.task for one, _, _ in wanted if one.task is not None]
        self._threads.wait(tasks)
        for (slot_edits, sampler, guesses), task in zip(wanted, tasks, strict=True):
            slot_edits.late = task.when_done()
            late = slot_edits.late is not None
            sampler.edit(*([_NOTHING] if late else slot_edits.edits_for(guesses)))

    def late(self, slot: int) -> Future[None] | None:
        slot_edits = self._slots.get(slot)
        return None if slot_edits is None else slot_edits.late

    def failure(self, slot: int) -> HeddleError | None:
        slot_edits = self._slots.get(slot)
        return None if slot_edits is None else slot_edits.failure

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        slot_edits = self._slots.get(slot)
        if slot_edits is not None:
            slot_edits.observe(tokens)


def _allows(mask: bytes, token: int) -> bool:
    return not mask or (token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1))


def _common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    pairs = zip(tokens, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
