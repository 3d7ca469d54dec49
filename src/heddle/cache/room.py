"""Numbers of pages, one for each group."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, le, sub


@dataclass(frozen=True, slots=True)
class Room:
    """Numbers of free or needed pages: of all positions, then of each windowed group."""

    pages: tuple[int, ...]

    def __add__(self, other: Room) -> Room:
        return Room(tuple(map(add, self.pages, other.pages)))

    def __sub__(self, other: Room) -> Room:
        return Room(tuple(map(sub, self.pages, other.pages)))

    def holds(self, need: Room) -> bool:
        """Whether each group has at least as many pages as `need`."""
        return all(map(le, need.pages, self.pages))
