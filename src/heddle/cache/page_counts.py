"""Numbers of pages, one for each group."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, le, sub


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Numbers of free or needed pages: of all positions, then of each windowed group."""

    pages: tuple[int, ...]

    def __add__(self, other: PageCounts) -> PageCounts:
        return PageCounts(tuple(map(add, self.pages, other.pages)))

    def __sub__(self, other: PageCounts) -> PageCounts:
        return PageCounts(tuple(map(sub, self.pages, other.pages)))

    def covers(self, need: PageCounts) -> bool:
        """Whether each group's count is at least its count in `need`."""
        return all(map(le, need.pages, self.pages))
