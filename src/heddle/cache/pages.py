"""The pool of page ids and who owns each. Nothing here knows what a page holds."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class PagePool:
    """Owners of pages [0, size), and the pages without one, lowest id first.

    Running sequences *hold* pages, the prefix tree *keeps* them; a page may have several owners of
    either kind and is free when it has none. What is kept and not held can be had by eviction.

    The executor's memory becomes resident where it is first written. Handing out the lowest free
    id keeps the pages in use together at the front, so a server that never runs full never touches
    the rest.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._holders = [0] * size
        self._keepers = [0] * size
        self._free = list(range(size))  # sorted, hence a heap
        self.held = 0
        """Pages that someone holds."""
        self.kept = 0
        """Pages that the tree keeps."""

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free page, held once. O(log size).

        Raises:
            IndexError: no page is free; check `free` first.
        """
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        self.held += 1
        return page

    def hold(self, page: int) -> None:
        """One more holder of a page that has an owner."""
        self._check_owned(page)
        self.held += not self._holders[page]
        self._holders[page] += 1

    def let_go(self, page: int) -> None:
        """One holder less. O(log size)."""
        if not self._holders[page]:
            raise ValueError(f"page {page} is held by no one")
        self._holders[page] -= 1
        self.held -= not self._holders[page]
        self._reclaim(page)

    def keep(self, page: int) -> None:
        """One more node of the tree names a page that has an owner."""
        self._check_owned(page)
        self.kept += not self._keepers[page]
        self._keepers[page] += 1

    def forget(self, page: int) -> None:
        """One node less names the page. O(log size)."""
        if not self._keepers[page]:
            raise ValueError(f"page {page} is kept by no one")
        self._keepers[page] -= 1
        self.kept -= not self._keepers[page]
        self._reclaim(page)

    def is_held(self, page: int) -> bool:
        """Whether someone holds the page."""
        return self._holders[page] > 0

    def _check_owned(self, page: int) -> None:
        if not (self._holders[page] or self._keepers[page]):
            raise ValueError(f"page {page} is free and cannot be shared")

    def _reclaim(self, page: int) -> None:
        if not (self._holders[page] or self._keepers[page]):
            heapq.heappush(self._free, page)

    def check_integrity(self, held: Mapping[int, int], kept: Mapping[int, int]) -> None:
        """Prove counts, totals and free list, given how often each page is held and kept.

        Raises:
            AssertionError: naming the page that is wrong and both counts.
        """
        for counts, named, owners in (
            (self._holders, held, "holders"),
            (self._keepers, kept, "keepers"),
        ):
            for page, count in enumerate(counts):
                there = named.get(page, 0)
                assert count == there, f"page {page} counts {count} {owners}, there are {there}"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is on the free list twice"
        unowned = set(range(self.size)).difference(held, kept)
        assert free == unowned, f"free list and owners differ in {sorted(free ^ unowned)}"
        assert self.held == len(held), f"{self.held} pages are not held"
        assert self.kept == len(kept), f"{self.kept} pages are not kept"
