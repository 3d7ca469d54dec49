"""Pools of page ids, and the owners of each page. The content of pages does not matter here."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class PagePool:
    """Owners of pages [0, size), and the free pages, lowest id first.

    Running sequences *hold* pages. The prefix tree *keeps* pages. A page may have several owners of
    either kind, and is free when it has no owner. Eviction can free a page that is kept but not
    held.

    The operating system makes a page of the executor's memory resident at its first write. `take`
    returns the lowest free id, so the used pages stay together at the front. A server that is never
    full never makes the other pages resident.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._holders = [0] * size
        self._keepers = [0] * size
        self._free = list(range(size))  # a sorted list is a heap
        self.held = 0
        """Number of pages that a sequence holds."""
        self.kept = 0
        """Number of pages that the tree keeps."""

    @property
    def free(self) -> int:
        """Number of pages without an owner."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Number of pages that no sequence holds."""
        return self.size - self.held

    def take(self) -> int:
        """Take the lowest free page. The page then has one holder. O(log size).

        Raises:
            IndexError: no page is free. Check `free` first.
        """
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        self.held += 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that has an owner."""
        self._check_owned(page)
        self.held += not self._holders[page]
        self._holders[page] += 1

    def let_go(self, page: int) -> None:
        """Remove a holder. O(log size)."""
        if not self._holders[page]:
            raise ValueError(f"page {page} has no holder")
        self._holders[page] -= 1
        self.held -= not self._holders[page]
        self._reclaim(page)

    def keep(self, page: int) -> None:
        """Count one more node that names the page. The page must have an owner."""
        self._check_owned(page)
        self.kept += not self._keepers[page]
        self._keepers[page] += 1

    def forget(self, page: int) -> None:
        """Count one node fewer that names the page. O(log size)."""
        if not self._keepers[page]:
            raise ValueError(f"page {page} has no keeper")
        self._keepers[page] -= 1
        self.kept -= not self._keepers[page]
        self._reclaim(page)

    def is_held(self, page: int) -> bool:
        """Whether a sequence holds the page."""
        return self._holders[page] > 0

    def is_held_once(self, page: int) -> bool:
        """Whether exactly one sequence holds the page."""
        return self._holders[page] == 1

    def _check_owned(self, page: int) -> None:
        if not (self._holders[page] or self._keepers[page]):
            raise ValueError(f"page {page} is free and cannot be shared")

    def _reclaim(self, page: int) -> None:
        if not (self._holders[page] or self._keepers[page]):
            heapq.heappush(self._free, page)


NO_TICKET = -1
"""A ticket that names no page of any pool."""


class RevocablePool(PagePool):
    """Pages, or snapshots, that the tree keeps only until a sequence needs them.

    Nodes name a page by a *ticket*, which `keep_for_node` returns. A page is idle if it is kept but
    not held. When a sequence takes a page and none is free, the pool revokes the page that has been
    idle longest. All tickets for that page are stale from then on, so the pool need not find the
    nodes that name it.

    Args:
        size: number of pages.
        before_revoke: called with the ticket of a page just before the pool revokes the page.
    """

    def __init__(
        self, size: int, before_revoke: Callable[[int], None] = lambda ticket: None
    ) -> None:
        super().__init__(size)
        self._tickets = list(range(size))  # ticket of page i: i + size * times revoked
        self._idle: OrderedDict[int, None] = OrderedDict()  # the longest idle page first
        self._before_revoke = before_revoke

    def page(self, ticket: int) -> int | None:
        """The page that the ticket names; None if the ticket is stale."""
        page = ticket % self.size if self.size else 0
        return page if self.size and self._tickets[page] == ticket else None

    def take(self) -> int:
        """Take the lowest free page, or else the longest idle page. It then has one holder."""
        if not self._free and self._idle:
            self.revoke()
        return super().take()

    def hold(self, page: int) -> None:
        super().hold(page)
        self._idle.pop(page, None)

    def keep_for_node(self, page: int) -> int:
        """Count one more node that names the page. Returns the page's ticket."""
        super().keep(page)
        return self._tickets[page]

    def keep_again(self, ticket: int) -> None:
        """Count one more node that names the page of `ticket`. No effect if it is stale."""
        page = self.page(ticket)
        if page is not None:
            super().keep(page)

    def forget_ticket(self, ticket: int) -> None:
        """Count one node fewer that names the page of `ticket`. No effect if it is stale."""
        page = self.page(ticket)
        if page is not None:
            super().forget(page)

    def revoke(self) -> bool:
        """Free the page that has been idle longest. Returns False if no page is idle."""
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
