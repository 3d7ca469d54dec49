"""The slots of a model, and the running sequences in order."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence


class Slots:
    """The slots, and the sequence that holds each. Not thread-safe.

    Attributes:
        running: the sequences with slots, by priority, then by the step in which they got them.
            Sequences that have ended are among them until no step in flight carries them.
        holders: the sequence that holds each slot; None if the slot is free. Only this class writes
            to it. Other threads may read it.
        latest: salt and tokens of the sequence that got each slot last; None before the first.
    """

    def __init__(self, count: int) -> None:
        self.running: list[Sequence] = []
        self.latest: list[tuple[str | None, list[int]] | None] = [None] * count
        self.holders: list[Sequence | None] = [None] * count
        self._given = 0
        self._turns = 0

    @property
    def has_free(self) -> bool:
        """Whether a slot is free."""
        return len(self.running) < len(self.holders)

    def give(self, sequence: Sequence) -> None:
        """Give a sequence the slot that it asks for, or the first free one if that is taken.

        It also gets a rank in the order, and the last turn.
        """
        wanted = sequence.wanted_slot
        is_free = 0 <= wanted < len(self.holders) and self.holders[wanted] is None
        sequence.slot = wanted if is_free else self.holders.index(None)
        self.holders[sequence.slot] = sequence
        self.latest[sequence.slot] = sequence.scope, sequence.keys
        self._given += 1
        sequence.rank = self._given
        self.end_turn(sequence)
        insort(self.running, sequence, key=_place)

    def take_back(self, sequence: Sequence) -> None:
        """Take a sequence's slot."""
        self.running.remove(sequence)
        self.holders[sequence.slot] = None
        sequence.slot = -1

    def end_turn(self, sequence: Sequence) -> None:
        """The sequence got tokens in a step: others come before it if tokens are short."""
        self._turns += 1
        sequence.turn = self._turns


def _place(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.rank
