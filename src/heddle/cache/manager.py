"""The only door to KV pages: page tables grow and are released here.

Ownership::

    Sequence --holds--> PageTable --one reference per entry--> page --counted in--> PagePool
                                                                |
                                           no reference: the page is on the free list

A table owns the pages it names until it is released; no one else may keep their ids beyond a step.
Pages have counts and not flags because several tables may come to name one page.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from heddle.cache.pages import PagePool
from heddle.step import PAGE_TOKENS


def pages_for(tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one sequence: position p lives in `pages[p // PAGE_TOKENS]`.

    Starts empty. Written by the manager alone; others read.
    """

    pages: list[int] = field(default_factory=list)


class CacheManager:
    """Hands `pages` pages to page tables. Not thread-safe: its scheduler is its one caller.

    Growing a table never takes a page from another one: when pages run out it is the scheduler
    that decides who gives back.
    """

    def __init__(self, pages: int) -> None:
        self._pool = PagePool(pages)
        self._holding: set[PageTable] = set()  # tables with pages

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self._pool.size

    @property
    def free(self) -> int:
        """Pages that `grow` could hand out now."""
        return self._pool.free

    def grow(self, table: PageTable, tokens: int) -> bool:
        """Let the table cover positions [0, tokens); false and unchanged if pages are short."""
        missing = pages_for(tokens) - len(table.pages)
        if missing > self._pool.free:
            return False
        if missing > 0 and not table.pages:
            self._holding.add(table)
        for _ in range(missing):
            table.pages.append(self._pool.take())
        return True

    def release(self, table: PageTable) -> None:
        """Give every page back. The table is empty then, and may grow again."""
        self._holding.discard(table)
        for page in table.pages:
            self._pool.drop(page)
        table.pages.clear()

    def check_integrity(self) -> None:
        """Prove that every page has exactly the owners it should. O(pages), for tests.

        Raises:
            AssertionError: naming the page and both counts.
        """
        self._pool.check_integrity()
        named = Counter(page for table in self._holding for page in table.pages)
        for page in range(self._pool.size):
            counted = self._pool.owners(page)
            assert counted == named[page], (
                f"page {page} counts {counted} owners, {named[page]} tables name it"
            )
        for table in self._holding:
            assert len(set(table.pages)) == len(table.pages), f"a table repeats {table.pages}"
