"""Grammars of the slots of an executor, and the masks for their samplers.

A mask depends on the tokens before it, and not on the step's logits. So threads make masks while
the step computes. If a slot's mask is late, the slot gets no token in this step: its sampler finds
no allowed token and keeps its state. A later step computes the same logits again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from heddle.errors import EngineFailedError, GrammarError
from heddle.executors.cpu.mask_threads import MaskTask, MaskThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from heddle import _native
    from heddle.errors import HeddleError
    from heddle.step import Binding, GrammarState, TokenGrammar

_log = logging.getLogger(__name__)

_NOTHING = b"\0"
"""A mask that allows no token: its sampler chooses no token and keeps its state."""


class _SlotGrammar:
    """The state of a slot's sequence in its grammar."""

    def __init__(self, grammar: TokenGrammar, output: list[int]) -> None:
        self.failure: HeddleError | None = None
        self.mask = b""  # mask for the next token; valid when `task` is done
        self.task: MaskTask | None = None  # the work that makes the mask; None after its token
        self.late: Future[None] | None = None  # done when the late mask is ready
        self._unseen = output  # tokens that `_state` has not seen yet
        self._grammar = grammar
        self._state: GrammarState | None = None

    def begin(self) -> MaskTask | None:
        """New work that makes the next token's mask; None if such work has already begun."""
        if self.task is not None:
            return None
        self.task = MaskTask(self._make)
        return self.task

    def give_up(self, task: MaskTask, cause: Exception) -> None:
        """Fail: no thread does the work."""
        self.failure = EngineFailedError(f"no thread makes the request's masks: {cause}")
        task.given_up = True
        task.run()

    def observe(self, token: int) -> None:
        """Record that the sequence continues with `token`."""
        self.task = None
        self._unseen.append(token)

    def _make(self) -> None:
        """Set `mask`; empty if all tokens are allowed. An error sets `failure`."""
        unseen, self._unseen = self._unseen, []
        self.mask = b""
        try:
            if self._state is None:
                self._state = self._grammar.begin()
            self.mask = self._state.next_mask(unseen)
        except GrammarError as error:
            self.failure = error
        except Exception as cause:  # other requests of the step must not fail too
            _log.exception("a grammar failed")
            self.failure = EngineFailedError(f"the request's grammar failed: {cause}")


class GrammarMasks:
    """Masks by slot. Only the executor's thread calls it."""

    def __init__(self) -> None:
        self._grammars: dict[int, _SlotGrammar] = {}
        self._threads = MaskThreads()

    def bind(self, binding: Binding) -> None:
        """Give the binding's slot the grammar of the binding, if it has one."""
        last = self._grammars.pop(binding.slot, None)
        if last is not None and last.task is not None:
            last.task.given_up = True
        if binding.rules.grammar is not None:
            self._grammars[binding.slot] = _SlotGrammar(binding.rules.grammar, list(binding.output))

    def begin_masks(self, samplers: Mapping[int, _native.Sampler]) -> Callable[[], None] | None:
        """Begin to make the masks of these slots.

        Returns a function that waits for the masks and gives them to the samplers; None if no slot
        has a grammar.
        """
        wanted = [
            (slot_grammar, sampler)
            for slot, sampler in samplers.items()
            if (slot_grammar := self._grammars.get(slot)) is not None
        ]
        for slot_grammar, _ in wanted:
            if (task := slot_grammar.begin()) is not None:
                try:
                    self._threads.begin(task)
                except RuntimeError as cause:  # other requests of the step must not fail
                    slot_grammar.give_up(task, cause)
        return partial(self._fill, wanted) if wanted else None

    def _fill(self, wanted: list[tuple[_SlotGrammar, _native.Sampler]]) -> None:
        tasks = [slot_grammar.task for slot_grammar, _ in wanted if slot_grammar.task is not None]
        self._threads.wait(tasks)
        for (slot_grammar, sampler), task in zip(wanted, tasks, strict=True):
            slot_grammar.late = task.when_done()
            sampler.allow_only(slot_grammar.mask if slot_grammar.late is None else _NOTHING)

    def late(self, slot: int) -> Future[None] | None:
        """A future that is done when the slot's late mask is ready; None if it was not late."""
        slot_grammar = self._grammars.get(slot)
        return None if slot_grammar is None else slot_grammar.late

    def failure(self, slot: int) -> HeddleError | None:
        """The error of the slot's mask; None if there was no error."""
        slot_grammar = self._grammars.get(slot)
        return None if slot_grammar is None else slot_grammar.failure

    def observe(self, slot: int, token: int) -> None:
        """Record that the slot's sequence continues with `token`."""
        slot_grammar = self._grammars.get(slot)
        if slot_grammar is not None:
            slot_grammar.observe(token)
