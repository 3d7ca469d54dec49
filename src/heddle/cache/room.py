"""Numbers of pages, one for each group."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, le, sub


@dataclass(frozen=True, slots=True)
class Room:
    """Pages that there are, or that something needs: of all positions, then by windowed group."""

    pages: tuple[int, ...]

    def __add__(self, other: Room) -> Room:
        return Room(tuple(map(add, self.pages, other.pages)))

    def __sub__(self, other: Room) -> Room:
        return Room(tuple(map(sub, self.pages, other.pages)))

    def holds(self, need: Room) -> bool:
        """Whether there are as many pages of each group as `need` says."""
        return all(map(le, need.pages, self.pages))
