"""Lets the eyes of a model work between its steps, so that running streams keep their gaps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heddle.errors import EngineFailedError, StepAbandonedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.pictures import Encoder, Look
    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence

_log = logging.getLogger(__name__)

_SHARE = 0.5
"""Part of the time that a step may take beside its decodes. Prompts get the other part."""

_FIRST_SECONDS = 0.02
"""Seconds of a turn before any step was timed."""

_IDLE_SECONDS = 0.25
"""Seconds of a turn while no stream runs: so long waits a request that arrives meanwhile."""


def waiting(slots: Iterable[Sequence | None]) -> list[Sequence]:
    """The sequences that wait for the rows of pictures, in the order of the slots."""
    held = (one for one in slots if one is not None)
    return [one for one in held if one.wants_looks and not one.ended]


class Looking:
    """The work of the eyes for the sequences in slots. Used by the engine thread."""

    def __init__(self, encoder: Encoder, pace: Pace) -> None:
        self._encoder = encoder
        self._pace = pace
        self._works = False

    def advance(
        self, slots: Iterable[Sequence | None], shown: Iterable[Sequence]
    ) -> EngineFailedError | None:
        """Work for one turn on the pictures of `shown`. Returns the error if the eyes failed.

        Raises:
            StepAbandonedError: another thread has abandoned their work.
        """
        self._works = True
        self._pace.prompts = 1.0 - _SHARE
        try:
            self._encoder.advance(_wanted(shown), self._seconds(slots))
        except StepAbandonedError:
            raise
        except EngineFailedError as error:
            return error
        except Exception as cause:
            _log.exception("the eyes failed")
            return EngineFailedError(f"the eyes failed: {cause}")
        return None

    def rest(self) -> None:
        """Nobody waits for the eyes: let them forget pictures that they have begun to look at."""
        if self._works:
            self._works = False
            self._pace.prompts = 1.0
            self._encoder.advance((), 0.0)

    def _seconds(self, slots: Iterable[Sequence | None]) -> float:
        """How long the eyes may work before the next step."""
        decodes = sum(one is not None and one.generating and not one.waits for one in slots)
        if not decodes:
            return _IDLE_SECONDS
        spare = self._pace.spare_seconds(decodes)
        return _FIRST_SECONDS if spare is None else _SHARE * spare


def _wanted(shown: Iterable[Sequence]) -> list[Look]:
    """The looks whose rows sequences wait for, each once."""
    looks: dict[int, Look] = {}
    for sequence in shown:
        assert sequence.pictures is not None, "it waits for rows of pictures"
        looks |= {id(look): look for look in sequence.pictures.wanted(sequence.computed)}
    return list(looks.values())
