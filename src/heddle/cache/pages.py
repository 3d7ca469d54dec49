"""The pool of page ids and how many owners each has. Nothing here knows what a page holds."""

from __future__ import annotations

import heapq


class PagePool:
    """Reference counts of pages [0, size), and the free ones, lowest id first.

    The executor's memory becomes resident where it is first written. Handing out the lowest free
    id keeps the pages in use together at the front, so a server that never runs full never touches
    the rest.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._owners = [0] * size
        self._free = list(range(size))  # sorted, hence a heap

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free page, with one owner. O(log size).

        Raises:
            IndexError: no page is free; check `free` first.
        """
        page = heapq.heappop(self._free)
        self._owners[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more owner of a page that already has some."""
        if self._owners[page] == 0:
            raise ValueError(f"page {page} is free and cannot be shared")
        self._owners[page] += 1

    def drop(self, page: int) -> None:
        """One owner less; the last one frees the page. O(log size)."""
        if self._owners[page] == 0:
            raise ValueError(f"page {page} is free already")
        self._owners[page] -= 1
        if self._owners[page] == 0:
            heapq.heappush(self._free, page)

    def owners(self, page: int) -> int:
        """How many owners the page has."""
        return self._owners[page]

    def check_integrity(self) -> None:
        """Every page is either owned or on the free list, once.

        Raises:
            AssertionError: one is both, neither, or free twice.
        """
        free = set(self._free)
        assert len(free) == len(self._free), "a page is on the free list twice"
        unowned = {page for page, owners in enumerate(self._owners) if owners == 0}
        assert free == unowned, f"free list and owner counts differ in {sorted(free ^ unowned)}"
