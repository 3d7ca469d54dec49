"""The slots of a model, and the running sequences in order."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence


class Slots:
    """Which sequence holds which slot. Not thread-safe.

    Attributes:
        running: the sequences with slots, by priority, then by the step in which they got them.
            Sequences that have ended are among them until no step in flight carries them.
    """

    def __init__(self, count: int) -> None:
        self.running: list[Sequence] = []
        self._holders: list[Sequence | None] = [None] * count
        self._given = 0
        self._turns = 0

    @property
    def has_free(self) -> bool:
        """Whether a slot is free."""
        return len(self.running) < len(self._holders)

    @property
    def holders(self) -> tuple[Sequence | None, ...]:
        """The sequence that holds each slot; None if the slot is free."""
        return tuple(self._holders)

    def give(self, sequence: Sequence) -> None:
        """Give a sequence the first free slot, a rank in the order, and the last turn."""
        sequence.slot = self._holders.index(None)
        self._holders[sequence.slot] = sequence
        self._given += 1
        sequence.rank = self._given
        self.end_turn(sequence)
        insort(self.running, sequence, key=_place)

    def take_back(self, sequence: Sequence) -> None:
        """Take a sequence's slot."""
        self.running.remove(sequence)
        self._holders[sequence.slot] = None
        sequence.slot = -1

    def end_turn(self, sequence: Sequence) -> None:
        """The sequence got tokens in a step: others come before it if tokens are short."""
        self._turns += 1
        sequence.turn = self._turns


def _place(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.rank
