"""Pages and snapshots of sequences: page tables grow, share pages of prefixes, and are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.cache.page_counts import PageCounts
from heddle.state import PAGE_TOKENS, pages_for
from heddle.step import WindowPages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.cache.cached_prefixes import CachedPrefixes
    from heddle.cache.page_tables import PageTable
    from heddle.cache.pools import Pools
    from heddle.cache.radix import Match


class SequencePages:
    """Gives pages to page tables. It owns the set of tables that hold pages.

    Only the scheduler, and what computes in the engine thread for it, calls this. To grow a table,
    it lets the cached prefixes evict nodes. It never takes a page from another table: if the tables
    hold all pages, the scheduler decides which sequence gives pages back.

    Attributes:
        size: number of pages of the group of all positions.
        has_windows: whether some layers see only a window.
    """

    def __init__(self, pools: Pools, prefixes: CachedPrefixes) -> None:
        self._pool = pools.pages
        self._windows = pools.windows
        self._snapshots = pools.snapshots
        self._prefixes = prefixes
        self._tables: set[PageTable] = set()  # tables with pages or a cursor
        self.size = pools.pages.size
        self.has_windows = bool(pools.windows)

    @property
    def available(self) -> int:
        """Number of pages that `grow` could give out: free pages, and pages that only the tree
        keeps."""
        return self._pool.available

    @property
    def available_by_group(self) -> PageCounts:
        """`available` of each group."""
        windows = (group.pool.available for group in self._windows)
        return PageCounts((self._pool.available, *windows))

    def grow(self, table: PageTable, tokens: int, *, saves: bool = True) -> bool:
        """Grow the table to positions [0, tokens). If pages are short, change nothing: False.

        Unless it `saves`, pages count as short if one would first have to be saved on disk.
        """
        missing = -(-tokens // PAGE_TOKENS) - len(table.pages)
        if missing <= 0:
            return True
        if any(missing > group.pool.available for group in self._windows):
            return False
        if missing > self._pool.free:
            if missing > self._pool.available:
                return False
            if self._prefixes.saves and not saves:
                return False
            self._make_room(missing)
        self._tables.add(table)
        for _ in range(missing):
            table.pages.append(self._pool.take())
        if self._windows:
            table.windows = table.windows or [WindowPages() for _ in self._windows]
            for group, window in zip(self._windows, table.windows, strict=True):
                window.pages += [group.pool.take() for _ in range(missing)]
        return True

    def shrink(self, table: PageTable, tokens: int) -> None:
        """Give back the pages after positions [0, tokens): they held wrong guesses only."""
        extra = len(table.pages) - -(-tokens // PAGE_TOKENS)
        if extra <= 0:
            return
        for page in table.pages[-extra:]:
            self._pool.let_go(page)
        del table.pages[-extra:]
        for group, window in zip(self._windows, table.windows, strict=False):
            group.shrink(window, extra)

    def give_back(self, table: PageTable, tokens: Sequence[int], computed: int) -> None:
        """Publish, then give back, windowed pages that no position from `computed` on sees."""
        for group, window in zip(self._windows, table.windows, strict=False):
            first = group.memory.first_page(computed)
            if first > window.first:
                self._prefixes.publish(table, tokens, computed)
                group.give_back(window, first)

    def claim(self, table: PageTable, tokens: int) -> PageCounts:
        """Number of further pages that the table needs to cover `tokens`."""
        new = pages_for(tokens) - len(table.pages)
        if not self._windows:
            return PageCounts((new,))
        held = table.windows or [WindowPages() for _ in self._windows]
        pairs = zip(self._windows, held, strict=True)
        return PageCounts((new, *(group.claim(window, new) for group, window in pairs)))

    def cost(self, match: Match, tokens: int) -> PageCounts:
        """How many available pages a table needs to attach to the match and cover `tokens`.

        The source of a copy counts, although the table releases it after a step.
        """
        new = pages_for(tokens) - match.length // PAGE_TOKENS
        global_cost = new + sum(not self._pool.is_held(page) for page in match.pages)
        return PageCounts((global_cost, *(group.cost(match, new) for group in self._windows)))

    def attach(self, table: PageTable, match: Match) -> None:
        """Replace the table's pages by the pages of the match.

        The table shares full pages. If the match ends inside a page, this page becomes `source`,
        the source of a copy.
        """
        if not self._prefixes.enabled:
            return
        pages = match.pages
        for page in pages:
            self._pool.hold(page)
        windows = [group.attach(match) for group in self._windows]
        state = self._snapshots.attach(match) if self._snapshots else None
        cursor = self._prefixes.tree.enter(match)
        self.release(table)
        table.cursor, table.windows, table.state = cursor, windows, state
        table.lost = match.lost
        if match.length % PAGE_TOKENS:
            table.source = pages.pop()
        table.pages += pages
        self._tables.add(table)
        self._prefixes.keep_node_limit()

    def copied(self, table: PageTable) -> None:
        """Release the table's `source` and `state`: the executor has copied them."""
        if table.source is not None:
            self._pool.let_go(table.source)
            table.source = None
            for group, window in zip(self._windows, table.windows, strict=True):
                group.copied(window)
        if table.state is not None and self._snapshots:
            self._snapshots.pool.let_go(table.state)
            table.state = None

    def release(self, table: PageTable) -> None:
        """Give back all pages. The table is then empty, and can be used again."""
        self._tables.discard(table)
        if table.cursor is not None:
            self._prefixes.tree.leave(table.cursor)
            table.cursor = None
        self.copied(table)
        for page in table.pages:
            self._pool.let_go(page)
        table.pages.clear()
        for group, window in zip(self._windows, table.windows, strict=False):
            group.release(window)
        table.windows = []
        self._drop_snapshot(table)

    @property
    def snapshot_tokens(self) -> int:
        """Number of tokens between snapshots; 0 if the model has no fixed-size state."""
        return self._snapshots.every if self._snapshots else 0

    def begin_snapshot(self, table: PageTable) -> int | None:
        """Reserve a snapshot for the state after the next step; None if the step takes none.

        The table holds it until `end_snapshot`.
        """
        if self._snapshots and table.cursor is not None:
            table.snapshot = self._snapshots.take()
        return table.snapshot

    def end_snapshot(self, table: PageTable, tokens: Sequence[int], computed: int) -> None:
        """Publish the snapshot taken after `computed` tokens, if there is one."""
        if table.snapshot is None or self._snapshots is None:
            return
        self._prefixes.publish(table, tokens, computed)
        cursor = table.cursor
        if cursor is not None and self._snapshots.of(cursor) is None:
            self._prefixes.tree.set_state(cursor, table.snapshot)
        self._drop_snapshot(table)

    def stop_publishing(self) -> None:
        """Let the sequences that have pages publish nothing more: all prefixes are dropped."""
        for table in self._tables:
            table.cursor = None

    def _drop_snapshot(self, table: PageTable) -> None:
        if table.snapshot is not None and self._snapshots:
            self._snapshots.pool.let_go(table.snapshot)
            table.snapshot = None

    def _make_room(self, pages: int) -> None:
        """Evict nodes until `pages` pages are free."""
        while self._pool.free < pages:
            if not self._prefixes.evict():
                for table in self._tables:
                    self._replace_boundary_pages(table)
                return

    def _replace_boundary_pages(self, table: PageTable) -> None:
        """For nodes on the table's path that end inside a page: replace this page by the
        table's."""
        node, pages = table.cursor, table.pages
        if node is not None and table.source is not None:  # the page is not copied yet
            pages = [*pages[: node.end // PAGE_TOKENS], table.source]
        while node is not None:
            self._prefixes.tree.replace_end_page(node, pages)
            node = node.parent
