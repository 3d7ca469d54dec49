"""Grammars of the slots of an executor, and the masks for their samplers.

A mask depends on the tokens before it, and not on the step's logits. So threads make masks while
the step computes. If a slot's mask is late, the slot gets no token in this step: its sampler finds
no allowed token and keeps its state. A later step computes the same logits again.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from heddle.errors import EngineFailedError, GrammarError
from heddle.executors.cpu.mask_threads import MaskTask, MaskThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from heddle.errors import HeddleError
    from heddle.step import Binding, Chunk, GrammarState, TokenGrammar

_log = logging.getLogger(__name__)

_NOTHING = b"\0"
"""A mask that allows no token: its sampler chooses no token and keeps its state."""


class MaskedSampler(Protocol):
    """A sampler that takes masks."""

    def allow_only(self, *masks: bytes) -> None:
        """Set the masks for the next pick and for those after each guess; none: any token."""
        ...


class MaskSource(Protocol):
    """Masks of the slots of an executor. Only the executor's thread calls it."""

    def bind(self, binding: Binding) -> None:
        """Give the binding's slot the grammar of the binding, if it has one."""
        ...

    def begin_masks(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, MaskedSampler]
    ) -> Callable[[], None] | None:
        """Begin to make the masks of these chunks. `samplers` are by slot.

        Returns a function that waits for the masks and gives them to the samplers; None if no slot
        has a grammar.
        """
        ...

    def late(self, slot: int) -> Future[None] | None:
        """A future that is done when the slot's late mask is ready; None if it was not late."""
        ...

    def failure(self, slot: int) -> HeddleError | None:
        """The error of the slot's mask; None if there was no error."""
        ...

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        """Record that the slot's sequence continues with `tokens`."""
        ...


class _SlotGrammar:
    """The state of a slot's sequence in its grammar."""

    def __init__(self, grammar: TokenGrammar, output: list[int]) -> None:
        self.failure: HeddleError | None = None
        # Masks for the next token and after each guess; valid when `task` is done.
        self.masks = [b""]
        self.task: MaskTask | None = None  # the work that makes the mask; None after its token
        self.late: Future[None] | None = None  # done when the late mask is ready
        self._output = output
        self._seen = 0  # leading tokens of the output that `_state` has seen
        self._guessed: list[int] = []  # guesses that `_state` has seen after the output
        self._grammar = grammar
        self._state: GrammarState | None = None

    def begin(self, guesses: Sequence[int]) -> MaskTask | None:
        """New work that makes the masks; None if work for the next token has already begun."""
        if self.task is not None:
            return None
        self.task = MaskTask(partial(self._make, guesses))
        return self.task

    def masks_for(self, guesses: Sequence[int]) -> list[bytes]:
        """The masks that are right for these guesses. Late masks may be those of others."""
        return self.masks[: 1 + _common(guesses, self._guessed)]

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
        """Set `masks`; a mask is empty if all tokens are allowed. An error sets `failure`."""
        self.masks = [b""]
        try:
            if self._state is None:
                self._state = self._grammar.begin()
            unseen, self._seen = self._output[self._seen :], len(self._output)
            self.masks = [self._state.next_mask(unseen)]
        except GrammarError as error:
            self.failure = error
        except Exception as cause:  # other requests of the step must not fail too
            _log.exception("a grammar failed")
            self.failure = EngineFailedError(f"the request's grammar failed: {cause}")
        else:
            self._add_masks(self._state, guesses)

    def _add_masks(self, state: GrammarState, guesses: Sequence[int]) -> None:
        """Add the masks after the guesses, as far as the grammar allows the guesses.

        A mask that cannot be made is no failure: the guess before it may be wrong.
        """
        for guess in guesses:
            if not _allows(self.masks[-1], guess):
                return
            try:
                mask = state.next_mask((guess,))
            except Exception:
                self._state, self._seen, self._guessed = None, 0, []
                del self.masks[1:]
                return
            self._guessed.append(guess)
            self.masks.append(mask)


class GrammarMasks:
    """Makes masks in this process; see :class:`MaskSource`."""

    def __init__(self) -> None:
        self._grammars: dict[int, _SlotGrammar] = {}
        self._threads = MaskThreads()

    def bind(self, binding: Binding) -> None:
        last = self._grammars.pop(binding.slot, None)
        if last is not None and last.task is not None:
            last.task.given_up = True
        if binding.rules.grammar is not None:
            self._grammars[binding.slot] = _SlotGrammar(binding.rules.grammar, list(binding.output))

    def begin_masks(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, MaskedSampler]
    ) -> Callable[[], None] | None:
        wanted = [
            (slot_grammar, samplers[chunk.slot], chunk.tokens[len(chunk.tokens) - chunk.guesses :])
            for chunk in chunks
            if (slot_grammar := self._grammars.get(chunk.slot)) is not None
        ]
        for slot_grammar, _, guesses in wanted:
            if (task := slot_grammar.begin(guesses)) is not None:
                try:
                    self._threads.begin(task)
                except RuntimeError as cause:  # other requests of the step must not fail
                    slot_grammar.give_up(task, cause)
        return partial(self._fill, wanted) if wanted else None

    def _fill(self, wanted: list[tuple[_SlotGrammar, MaskedSampler, Sequence[int]]]) -> None:
        tasks = [one.task for one, _, _ in wanted if one.task is not None]
        self._threads.wait(tasks)
        for (slot_grammar, sampler, guesses), task in zip(wanted, tasks, strict=True):
            slot_grammar.late = task.when_done()
            late = slot_grammar.late is not None
            sampler.allow_only(*([_NOTHING] if late else slot_grammar.masks_for(guesses)))

    def late(self, slot: int) -> Future[None] | None:
        slot_grammar = self._grammars.get(slot)
        return None if slot_grammar is None else slot_grammar.late

    def failure(self, slot: int) -> HeddleError | None:
        slot_grammar = self._grammars.get(slot)
        return None if slot_grammar is None else slot_grammar.failure

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        slot_grammar = self._grammars.get(slot)
        if slot_grammar is not None:
            slot_grammar.observe(tokens)


def _allows(mask: bytes, token: int) -> bool:
    return not mask or (token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1))


def _common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    pairs = zip(tokens, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
