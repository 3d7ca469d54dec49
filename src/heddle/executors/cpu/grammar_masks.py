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
from heddle.executors.cpu.mask_threads import Making, MaskThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from heddle import _native
    from heddle.errors import HeddleError
    from heddle.step import Binding, GrammarState, TokenGrammar

_log = logging.getLogger(__name__)

_NOTHING = b"\0"
"""A mask that allows no token: its sampler chooses no token and keeps its state."""


class _Place:
    """The state of a slot's sequence in its grammar."""

    def __init__(self, grammar: TokenGrammar, output: list[int]) -> None:
        self.failure: HeddleError | None = None
        self.mask = b""  # mask for the next token; valid when `making` is done
        self.making: Making | None = None  # the work that makes the mask; None after its token
        self.late: Future[None] | None = None  # done when the late mask is ready
        self._unseen = output  # tokens that `_state` has not seen yet
        self._grammar = grammar
        self._state: GrammarState | None = None

    def begin(self) -> Making | None:
        """New work that makes the next token's mask; None if such work has already begun."""
        if self.making is not None:
            return None
        self.making = Making(self._make)
        return self.making

    def observe(self, token: int) -> None:
        """Record that the sequence continues with `token`."""
        self.making = None
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
        self._places: dict[int, _Place] = {}
        self._threads = MaskThreads()

    def bind(self, binding: Binding) -> None:
        """Give the binding's slot the grammar of the binding, if it has one."""
        last = self._places.pop(binding.slot, None)
        if last is not None and last.making is not None:
            last.making.given_up = True
        if binding.rules.grammar is not None:
            self._places[binding.slot] = _Place(binding.rules.grammar, list(binding.output))

    def filling(self, samplers: Mapping[int, _native.Sampler]) -> Callable[[], None] | None:
        """Begin to make the masks of these slots.

        Returns a function that waits for the masks and gives them to the samplers; None if no slot
        has a grammar.
        """
        asked = [
            (place, sampler)
            for slot, sampler in samplers.items()
            if (place := self._places.get(slot)) is not None
        ]
        for place, _ in asked:
            if (making := place.begin()) is not None:
                self._threads.begin(making)
        return partial(self._fill, asked) if asked else None

    def _fill(self, asked: list[tuple[_Place, _native.Sampler]]) -> None:
        makings = [place.making for place, _ in asked if place.making is not None]
        self._threads.wait(makings)
        for (place, sampler), making in zip(asked, makings, strict=True):
            place.late = making.later()
            sampler.allow_only(place.mask if place.late is None else _NOTHING)

    def late(self, slot: int) -> Future[None] | None:
        """A future that is done when the slot's late mask is ready; None if it was not late."""
        place = self._places.get(slot)
        return None if place is None else place.late

    def failure(self, slot: int) -> HeddleError | None:
        """The error of the slot's mask; None if there was no error."""
        place = self._places.get(slot)
        return None if place is None else place.failure

    def observe(self, slot: int, token: int) -> None:
        """Record that the slot's sequence continues with `token`."""
        place = self._places.get(slot)
        if place is not None:
            place.observe(token)
