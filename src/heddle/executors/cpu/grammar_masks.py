"""Grammars of the slots of an executor, and the masks that their samplers pick under.

A mask needs the token before it, and nothing of the step: threads make masks while the step
computes. A slot whose mask is late gets no token in this step: the sampler finds nothing allowed
and keeps its state, and a later step computes the same logits again.
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
"""A mask that allows no token: under it a sampler picks none, and its state stays as it is."""


class _Place:
    """Where a slot's sequence stands in its grammar."""

    def __init__(self, grammar: TokenGrammar, output: list[int]) -> None:
        self.failure: HeddleError | None = None
        self.mask = b""  # of the next token, once `making` is done
        self.making: Making | None = None  # until a token has been picked under it
        self.late: Future[None] | None = None  # what this step's mask was too late for
        self._unseen = output  # tokens that the state has not been told
        self._grammar = grammar
        self._state: GrammarState | None = None

    def begin(self) -> Making | None:
        """The making of the next token's mask, which is to be done; None if it has begun."""
        if self.making is not None:
            return None
        self.making = Making(self._make)
        return self.making

    def observe(self, token: int) -> None:
        """The sequence goes on with `token`."""
        self.making = None
        self._unseen.append(token)

    def _make(self) -> None:
        """Set `mask`: empty for any token, and where it cannot be made; see `failure`."""
        unseen, self._unseen = self._unseen, []
        self.mask = b""
        try:
            if self._state is None:
                self._state = self._grammar.begin()
            self.mask = self._state.next_mask(unseen)
        except GrammarError as error:
            self.failure = error
        except Exception as cause:  # no reason for the step's other requests to fail
            _log.exception("a grammar failed")
            self.failure = EngineFailedError(f"the request's grammar failed: {cause}")


class GrammarMasks:
    """Masks by slot. Called from the executor's thread only."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._threads = MaskThreads()

    def bind(self, binding: Binding) -> None:
        """From now on the binding's slot has its grammar, or none."""
        last = self._places.pop(binding.slot, None)
        if last is not None and last.making is not None:
            last.making.given_up = True
        if binding.rules.grammar is not None:
            self._places[binding.slot] = _Place(binding.rules.grammar, list(binding.output))

    def filling(self, samplers: Mapping[int, _native.Sampler]) -> Callable[[], None] | None:
        """Begin these slots' masks. Returns what waits for them and gives them to the samplers;
        None if no slot has a grammar.
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
        """When the slot's mask is there, which was too late for this step; None if it was not."""
        place = self._places.get(slot)
        return None if place is None else place.late

    def failure(self, slot: int) -> HeddleError | None:
        """Why the slot has no mask, if it should have one."""
        place = self._places.get(slot)
        return None if place is None else place.failure

    def observe(self, slot: int, token: int) -> None:
        """The slot's sequence goes on with `token`."""
        place = self._places.get(slot)
        if place is not None:
            place.observe(token)
