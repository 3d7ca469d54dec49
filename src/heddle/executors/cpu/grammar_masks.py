"""Grammars of the slots of an executor, and the masks that their samplers pick under.

A mask needs the token before it, and nothing of the step: it is made while the step computes.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from heddle.errors import EngineFailedError, GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle import _native
    from heddle.errors import HeddleError
    from heddle.step import Binding, GrammarState, TokenGrammar

_log = logging.getLogger(__name__)


class _Place:
    """Where a slot's sequence stands in its grammar."""

    def __init__(self, grammar: TokenGrammar, output: list[int]) -> None:
        self.unseen = output  # tokens that the state has not been told
        self.failure: HeddleError | None = None
        self._grammar = grammar
        self._state: GrammarState | None = None

    def next_mask(self) -> bytes:
        """The mask of the next token; empty for any, and where it cannot be made: see `failure`."""
        unseen, self.unseen = self.unseen, []
        try:
            if self._state is None:
                self._state = self._grammar.begin()
            return self._state.next_mask(unseen)
        except GrammarError as error:
            self.failure = error
        except Exception as cause:  # no reason for the step's other requests to fail
            _log.exception("a grammar failed")
            self.failure = EngineFailedError(f"the request's grammar failed: {cause}")
        return b""


class GrammarMasks:
    """Masks by slot. Called from the executor's thread only."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}

    def bind(self, binding: Binding) -> None:
        """From now on the binding's slot has its grammar, or none."""
        self._places.pop(binding.slot, None)
        if binding.rules.grammar is not None:
            self._places[binding.slot] = _Place(binding.rules.grammar, list(binding.output))

    def filling(self, samplers: Mapping[int, _native.Sampler]) -> Callable[[], None] | None:
        """What gives these slots' samplers their masks; None if none of them has a grammar."""
        asked = [
            (place, sampler)
            for slot, sampler in samplers.items()
            if (place := self._places.get(slot)) is not None
        ]
        return partial(_fill, asked) if asked else None

    def failure(self, slot: int) -> HeddleError | None:
        """Why the slot has no mask, if it should have one."""
        place = self._places.get(slot)
        return None if place is None else place.failure

    def observe(self, slot: int, token: int) -> None:
        """The slot's sequence goes on with `token`."""
        place = self._places.get(slot)
        if place is not None:
            place.unseen.append(token)


def _fill(asked: list[tuple[_Place, _native.Sampler]]) -> None:
    for place, sampler in asked:
        sampler.allow_only(place.next_mask())
