"""The pages of one windowed group: which of them a sequence holds, and where it can go on.

A token at position p sees positions p - window + 1 to p. A sequence holds the pages that its next
token sees and gives back those before; the tree goes on naming them until their pool revokes them.
So a sequence can go on from a prefix of the tree only where all pages that its next token sees are
still there.
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
        memory: its sizes.
        pool: its pages.
    """

    def __init__(self, memory: WindowMemory, number: int) -> None:
        self.memory = memory
        self.pool = RevocablePool(memory.pages)
        self._number = number

    # --- finding ---------------------------------------------------------------------------------

    def resumable(self, match: Match, length: int) -> int:
        """The longest part of the match, at most `length`, that a sequence can go on from.

        Where a node begins inside a page, its own ticket for that page may be stale while its
        parent's is not. So the part may end there, and not only at the end of a page.
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
        """The pages that a sequence which goes on from the match sees."""
        first = self.memory.first_page(match.length)
        found = map(self.pool.page, match.tickets(self._number, first))
        return [page for page in found if page is not None]

    # --- room ------------------------------------------------------------------------------------

    def cost(self, match: Match, new: int) -> int:
        """Pages that a sequence needs which goes on from the match by `new` pages.

        Pages that one other sequence holds count: that sequence will need others in their place
        when it moves on, and the pages stay held.
        """
        pages = self.pages(match)
        idle = sum(not self.pool.is_held(page) for page in pages)
        once = sum(self.pool.is_held_once(page) for page in pages)
        source = match.length % PAGE_TOKENS > 0
        return min(new + idle, self.memory.reach + source) + once

    def claim(self, window: WindowPages, new: int) -> int:
        """Pages that a sequence still needs at once to go on by `new` pages."""
        if new <= 0:
            return new
        own = sum(map(self.pool.is_held_once, window.pages))
        return min(new, max(0, self.memory.reach - own))

    # --- holding ---------------------------------------------------------------------------------

    def attach(self, match: Match) -> WindowPages:
        """Hold the pages that a sequence sees which goes on from the match."""
        pages = self.pages(match)
        for page in pages:
            self.pool.hold(page)
        source = pages.pop() if match.length % PAGE_TOKENS else None
        return WindowPages(self.memory.first_page(match.length), pages, source)

    def give_back(self, window: WindowPages, first: int) -> None:
        """Let go of the pages before number `first`."""
        passed = window.pages[: first - window.first]
        del window.pages[: len(passed)]
        window.first = first
        for page in passed:
            self.pool.let_go(page)

    def copied(self, window: WindowPages) -> None:
        """The content of `source` is where it belongs."""
        if window.source is not None:
            self.pool.let_go(window.source)
            window.source = None

    def release(self, window: WindowPages) -> None:
        """Let go of everything.

        The last page goes first, and so is the first to be revoked: without it the pages before it
        are still of use, without the first page none is.
        """
        self.copied(window)
        for page in reversed(window.pages):
            self.pool.let_go(page)
        window.pages.clear()

    def share(self, window: WindowPages, number: int, ticket: int) -> bool:
        """Take the tree's page for one's own with this number; false if the ticket is stale."""
        index, page = number - window.first, self.pool.page(ticket)
        if page is None:
            return False
        if 0 <= index < len(window.pages) and window.pages[index] != page:
            self.pool.hold(page)
            self.pool.let_go(window.pages[index])
            window.pages[index] = page
        return True

    # --- proof -----------------------------------------------------------------------------------

    def check_path(self, window: WindowPages, match: Match) -> None:
        """Prove that a table holds the whole pages that its path names in its window.

        Raises:
            AssertionError: they differ.
        """
        whole = max(0, match.length // PAGE_TOKENS - window.first)
        named = [self.pool.page(t) for t in match.tickets(self._number, window.first)[:whole]]
        assert window.pages[:whole] == named, "a table and its path differ in a window"
