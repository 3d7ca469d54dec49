"""Pages of one windowed group: their owners, and the prefixes from which a sequence can continue.

A token at position p sees positions p - window + 1 to p. A sequence holds the pages that its next
token sees and gives back earlier pages. The tree still names the earlier pages until their pool
revokes them. So a sequence can continue a prefix of the tree only if the pool has not revoked any
page that its next token sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.cache.pages import RevocablePool
from heddle.state import PAGE_TOKENS, pages_for
from heddle.step import WindowPages

if TYPE_CHECKING:
    from heddle.cache.radix import Match
    from heddle.state import WindowMemory


class WindowGroup:
    """One windowed group.

    Attributes:
        memory: sizes of the group.
        pool: pages of the group.
    """

    def __init__(self, memory: WindowMemory, number: int) -> None:
        self.memory = memory
        self.pool = RevocablePool(memory.pages)
        self._number = number

    # --- finding ---------------------------------------------------------------------------------

    def resumable(self, match: Match, length: int) -> int:
        """The longest part of the match, at most `length`, from which a sequence can continue.

        If a node begins inside a page, its ticket for that page may be stale while its parent's
        ticket is valid. So the part may end where the node begins, and not only at the end of a
        page.
        """
        number = pages_for(length) - 1
        for node in reversed(match.path):
            first = node.start // PAGE_TOKENS
            while node.start < length and max(first, self.memory.first_page(length)) <= number:
                if self.pool.page(node.windows[self._number][number - first]) is None:
                    length = max(node.start, number * PAGE_TOKENS)
                    number = pages_for(length)
                number -= 1
        return length

    def pages(self, match: Match) -> list[int]:
        """The pages that a sequence sees if it continues from the match."""
        first = self.memory.first_page(match.length)
        found = map(self.pool.page, match.tickets(self._number, first))
        return [page for page in found if page is not None]

    # --- room ------------------------------------------------------------------------------------

    def cost(self, match: Match, new: int) -> int:
        """How many pages a sequence needs to continue from the match by `new` pages.

        Pages that exactly one other sequence holds count too. When that sequence advances, it needs
        new pages and cannot reuse these, because this sequence still holds them.
        """
        pages = self.pages(match)
        idle = sum(not self.pool.is_held(page) for page in pages)
        once = sum(self.pool.is_held_once(page) for page in pages)
        source = match.length % PAGE_TOKENS > 0
        return min(new + idle, self.memory.reach + source) + once

    def claim(self, window: WindowPages, new: int) -> int:
        """Number of further pages that a sequence holds at once to continue by `new` pages."""
        if new <= 0:
            return new
        own = sum(map(self.pool.is_held_once, window.pages))
        return min(new, max(0, self.memory.reach - own))

    # --- holding ---------------------------------------------------------------------------------

    def attach(self, match: Match) -> WindowPages:
        """Hold the pages that a sequence sees if it continues from the match."""
        pages = self.pages(match)
        for page in pages:
            self.pool.hold(page)
        source = pages.pop() if match.length % PAGE_TOKENS else None
        return WindowPages(self.memory.first_page(match.length), pages, source)

    def give_back(self, window: WindowPages, first: int) -> None:
        """Release the pages before page number `first`."""
        passed = window.pages[: first - window.first]
        del window.pages[: len(passed)]
        window.first = first
        for page in passed:
            self.pool.let_go(page)

    def shrink(self, window: WindowPages, count: int) -> None:
        """Release the last `count` pages."""
        for page in window.pages[-count:]:
            self.pool.let_go(page)
        del window.pages[-count:]

    def copied(self, window: WindowPages) -> None:
        """Release `source`: the executor has copied its content."""
        if window.source is not None:
            self.pool.let_go(window.source)
            window.source = None

    def release(self, window: WindowPages) -> None:
        """Release all pages, the last page first.

        The pool revokes pages in this order. Without the last page, the pages before it can still
        be used. Without the first page, no page can.
        """
        self.copied(window)
        for page in reversed(window.pages):
            self.pool.let_go(page)
        window.pages.clear()

    def share(self, window: WindowPages, number: int, ticket: int) -> bool:
        """Replace the window's page `number` by the tree's page. False if the ticket is stale."""
        index, page = number - window.first, self.pool.page(ticket)
        if page is None:
            return False
        if 0 <= index < len(window.pages) and window.pages[index] != page:
            self.pool.hold(page)
            self.pool.let_go(window.pages[index])
            window.pages[index] = page
        return True

    # --- proof -----------------------------------------------------------------------------------
