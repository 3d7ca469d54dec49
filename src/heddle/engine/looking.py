"""Lets the eyes of a model work between its steps, so that running streams keep their gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import EngineFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.pictures import Encoder, Look
    from heddle.scheduler.pace import Pace
    from heddle.scheduler.sequence import Sequence

_SHARE = 0.5
"""Part of the time that a step may take beside its decodes. Prompts get the other part."""

_FIRST_SECONDS = 0.02
"""Seconds of a turn before any step was timed."""

_IDLE_SECONDS = 0.25
"""Seconds of a turn while no stream runs: so long waits a request that arrives meanwhile."""


class Looking:
    """The work of the eyes for the sequences in slots. Used by the engine thread."""

    def __init__(self, encoder: Encoder, pace: Pace) -> None:
        self._encoder = encoder
        self._pace = pace

    def wanted(self, slots: Iterable[Sequence | None]) -> list[Look]:
        """The looks whose rows sequences wait for, each once, in the order of the slots."""
        looks: dict[int, Look] = {}
        for sequence in slots:
            if sequence is None or sequence.pictures is None or sequence.ended:
                continue
            looks |= {id(look): look for look in sequence.pictures.wanted(sequence.computed)}
        return list(looks.values())

    def seconds(self, slots: Iterable[Sequence | None]) -> float:
        """How long the eyes may work before the next step."""
        decodes = sum(one is not None and one.generating and not one.waits for one in slots)
        if not decodes:
            return _IDLE_SECONDS
        spare = self._pace.spare_seconds(decodes)
        return _FIRST_SECONDS if spare is None else _SHARE * spare

    def advance(
        self, slots: Iterable[Sequence | None], wanted: list[Look]
    ) -> EngineFailedError | None:
        """Work for one turn. Returns the error if the eyes failed, which ends those that wait."""
        try:
            self._encoder.advance(wanted, self.seconds(slots))
        except EngineFailedError as error:
            return error
        return None
