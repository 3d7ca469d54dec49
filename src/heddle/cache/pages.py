"""Pools of page ids and who owns each. Nothing here knows what a page holds."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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

    @property
    def available(self) -> int:
        """Pages that no one holds."""
        return self.size - self.held

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

    def is_held_once(self, page: int) -> bool:
        """Whether exactly one holds the page."""
        return self._holders[page] == 1

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


NO_TICKET = -1
"""Names no page of any pool."""


class RevocablePool(PagePool):
    """Pages, or snapshots, that the tree keeps only until a sequence needs them.

    Nodes name a page by a *ticket*, which `keep` returns. When a sequence takes a page and none is
    free, the pool revokes the page that has been idle longest: kept, and held by no one. All
    tickets for that page are stale from then on, so nobody has to look for the nodes that name it.

    Args:
        size: how many pages there are.
        before_revoke: called with the ticket of a page that is about to be revoked.
    """

    def __init__(
        self, size: int, before_revoke: Callable[[int], None] = lambda ticket: None
    ) -> None:
        super().__init__(size)
        self._tickets = list(range(size))  # of page i: i + size * times revoked
        self._idle: OrderedDict[int, None] = OrderedDict()  # the longest idle first
        self._before_revoke = before_revoke

    def page(self, ticket: int) -> int | None:
        """The page that the ticket names; None if the ticket is stale."""
        page = ticket % self.size if self.size else 0
        return page if self.size and self._tickets[page] == ticket else None

    def take(self) -> int:
        """A page that no one holds, held once: the lowest free one, or the longest idle."""
        if not self._free and self._idle:
            self.revoke()
        return super().take()

    def hold(self, page: int) -> None:
        super().hold(page)
        self._idle.pop(page, None)

    def keep_for_node(self, page: int) -> int:
        """One more node names the page. Returns the page's ticket."""
        super().keep(page)
        return self._tickets[page]

    def keep_again(self, ticket: int) -> None:
        """One more node names the page by this ticket. No effect if the ticket is stale."""
        page = self.page(ticket)
        if page is not None:
            super().keep(page)

    def forget_ticket(self, ticket: int) -> None:
        """One node less names the page by this ticket. No effect if the ticket is stale."""
        page = self.page(ticket)
        if page is not None:
            super().forget(page)

    def revoke(self) -> bool:
        """Free the page that has been idle longest; false if no page is idle."""
        if not self._idle:
            return False
        page = next(iter(self._idle))
        self._before_revoke(self._tickets[page])
        del self._idle[page]
        self._keepers[page] = 0
        self.kept -= 1
        self._tickets[page] += self.size
        heapq.heappush(self._free, page)
        return True

    def _reclaim(self, page: int) -> None:
        if self._holders[page]:
            return
        if self._keepers[page]:
            self._idle.setdefault(page)
        else:
            self._idle.pop(page, None)
            super()._reclaim(page)

    def check_integrity(self, held: Mapping[int, int], kept: Mapping[int, int]) -> None:
        super().check_integrity(held, kept)
        idle = set(kept).difference(held)
        assert set(self._idle) == idle, f"idle pages differ in {sorted(idle ^ set(self._idle))}"
