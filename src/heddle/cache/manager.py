"""Manages KV pages: grows and releases page tables, finds and keeps prefixes.

Ownership::

    Sequence --has--> PageTable --holds, once per entry--> page <--keeps, once per name-- Node
                          |                                 |                              |
                          +--holds--> source of a copy      +-- no owner: free             |
                          +--cursor, locks---------------------------------------------> Node

A table holds its pages until the manager releases the table. The tree keeps the pages of its nodes
until it evicts the nodes. It evicts when pages are short, and never evicts a node that a cursor
locks. A page has at most one writer: a full page is shared and never written again. If a prefix
ends inside a page, the executor copies that page before a sequence continues it.

The cursor of a table is the node where the sequence's published tokens end. `replace_end_page`
makes the nodes on the path to the cursor name pages that the table holds. So eviction can free
every page that no table holds, and `available` is exact without a search.

These rules are for the group of all positions. In a windowed group, a table holds only the pages
that its next token sees. For fixed-size state, a table holds the snapshot from which it continues,
until the executor has copied the snapshot. The tree names windowed pages and snapshots only until
their pools revoke them, so every page that no table holds can be freed there too. A match ends
where a sequence can continue: at a position with the pages of its windows and a snapshot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from heddle.cache.page_counts import PageCounts
from heddle.cache.pages import PagePool
from heddle.cache.radix import Match, Node, RadixTree
from heddle.cache.snapshots import Snapshots
from heddle.cache.windows import WindowGroup
from heddle.disk.tier import Restore, WarmPage
from heddle.state import PAGE_TOKENS, TokenArray, pages_for
from heddle.step import WindowPages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from heddle.cache.pages import RevocablePool
    from heddle.cache.radix import Salt
    from heddle.disk.tier import DiskStats, DiskTier
    from heddle.state import StateMemory

__all__ = [
    "CacheManager",
    "Match",
    "PageCounts",
    "PageTable",
    "PrefixCacheStats",
    "Restore",
    "pages_for",
]


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one sequence: position p lives in `pages[p // PAGE_TOKENS]`.

    A table is empty at first. Only the manager writes to it.

    Attributes:
        pages: page ids.
        cursor: the node of the tree where the published tokens end; None if the sequence publishes
            nothing.
        source: page to copy to the table's next page before a step computes that page; None if
            there is nothing to copy.
        windows: pages of each windowed group, up to the same position as `pages`.
        state: snapshot to copy to the slot's state before the first step, or None.
        snapshot: snapshot that the step in flight copies the slot's state to, or None.
        lost: tokens that the last match lost; see `Match`.
    """

    pages: list[int] = field(default_factory=list)
    cursor: Node | None = None
    source: int | None = None
    windows: list[WindowPages] = field(default_factory=list)
    state: int | None = None
    snapshot: int | None = None
    lost: int = 0


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Figures of the prefix cache at one moment, and totals since the start.

    Attributes:
        enabled: whether the cache finds and keeps prefixes.
        hits: requests that found tokens of their prompt.
        misses: requests that found no tokens.
        query_tokens: prompt tokens looked up.
        hit_tokens: prompt tokens found and therefore not computed.
        lost_tokens: prompt tokens found and computed nevertheless, because the state after them
            is not in memory: a snapshot, or the pages of a window.
        nodes: nodes of the tree.
        cached_tokens: tokens in these nodes.
        cached_bytes: bytes of the pages and snapshots that the tree keeps.
        capacity_bytes: bytes of all pages and snapshots.
        evictions: nodes evicted.
        disk: figures of the disk tier; None without one.
    """

    enabled: bool
    hits: int
    misses: int
    query_tokens: int
    hit_tokens: int
    lost_tokens: int
    nodes: int
    cached_tokens: int
    cached_bytes: int
    capacity_bytes: int
    evictions: int
    disk: DiskStats | None

    @property
    def hit_rate(self) -> float:
        """Share of requests that found tokens, 0 to 1; 0 before the first request."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def mean_hit_tokens(self) -> float:
        """Mean number of tokens found by requests that found tokens."""
        return self.hit_tokens / max(1, self.hits)


class CacheManager:
    """Gives pages to page tables, and keeps prefixes in pages that no table holds.

    Only `stats` is thread-safe: the scheduler is the only caller of the other methods. To grow a
    table, the manager may evict nodes of the tree. It never takes a page from another table. If the
    tables hold all pages, the scheduler decides which sequence gives pages back.

    Args:
        memory: numbers of pages of each group, and of snapshots.
        enabled: whether the manager finds and keeps prefixes.
        most_nodes: most nodes of the tree; 0: as many as the pages allow.
        disk: disk tier that saves evicted full pages and restores them; None: no disk tier.

    Attributes:
        has_windows: whether some layers see only a window.
    """

    def __init__(
        self,
        memory: StateMemory,
        *,
        enabled: bool = True,
        most_nodes: int = 0,
        disk: DiskTier | None = None,
    ) -> None:
        self._memory = memory
        self._pool = PagePool(memory.pages)
        self._windows = [WindowGroup(sizes, i) for i, sizes in enumerate(memory.windows)]
        self.has_windows = bool(self._windows)
        self._snapshots = (
            Snapshots(memory.snapshots, memory.snapshot_tokens) if memory.snapshot_bytes else None
        )
        self._tree = RadixTree(
            self._pool,
            [group.pool for group in self._windows],
            self._snapshots.pool if self._snapshots else None,
        )
        self._tables: set[PageTable] = set()  # tables with pages or a cursor
        self._most_nodes = most_nodes
        self._enabled = enabled
        self._disk = disk
        self._tiers = [] if disk is None else [disk]  # those that may have pages of a prompt
        self._hits = self._misses = self._query_tokens = self._hit_tokens = self._evictions = 0
        self._lost_tokens = 0

    @property
    def pages(self) -> int:
        """Number of pages of the group of all positions."""
        return self._pool.size

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

    # --- tables ----------------------------------------------------------------------------------

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
            if self._disk is not None and not saves:
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
                self.publish(table, tokens, computed)
                group.give_back(window, first)

    def claim(self, table: PageTable, tokens: int) -> PageCounts:
        """Number of further pages that the table needs to cover `tokens`."""
        new = pages_for(tokens) - len(table.pages)
        if not self._windows:
            return PageCounts((new,))
        held = table.windows or [WindowPages() for _ in self._windows]
        pairs = zip(self._windows, held, strict=True)
        return PageCounts((new, *(group.claim(window, new) for group, window in pairs)))

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
            self._tree.leave(table.cursor)
            table.cursor = None
        self.copied(table)
        for page in table.pages:
            self._pool.let_go(page)
        table.pages.clear()
        for group, window in zip(self._windows, table.windows, strict=False):
            group.release(window)
        table.windows = []
        self._drop_snapshot(table)

    # --- prefixes --------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether the manager finds and keeps prefixes."""
        return self._enabled

    def tick(self) -> None:
        """Advance the clock. Nodes used from now on are more recently used than all others."""
        self._tree.clock += 1

    def match(self, salt: Salt, tokens: Sequence[int], most: int | None = None) -> Match:
        """Find the longest cached prefix of the first `most` tokens.

        By default, `most` leaves out the last token: a step must compute it in any case.
        """
        if not self._enabled:
            return Match(salt, 0, ())
        run = TokenArray("i", tokens[: len(tokens) - 1 if most is None else most])
        return self._resumable(self._tree.match(salt, run))

    def whole_pages(self, match: Match) -> Match:
        """The longest part of the match that ends at a full page and can be continued."""
        return self._resumable(match.whole_pages(), whole=True)

    def _resumable(self, match: Match, *, whole: bool = False) -> Match:
        """The longest part of the match that a sequence can continue."""
        if not (self._windows or self._snapshots):
            return match
        length, before = match.length, -1
        while length != before:
            before = length
            if self._snapshots:
                length = self._snapshots.resumable(match, length, whole=whole)
            for group in self._windows:
                length = group.resumable(match, length)
        return match.up_to(length)

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
        if not self._enabled:
            return
        pages = match.pages
        for page in pages:
            self._pool.hold(page)
        windows = [group.attach(match) for group in self._windows]
        state = self._snapshots.attach(match) if self._snapshots else None
        cursor = self._tree.enter(match)
        self.release(table)
        table.cursor, table.windows, table.state = cursor, windows, state
        table.lost = match.lost
        if match.length % PAGE_TOKENS:
            table.source = pages.pop()
        table.pages += pages
        self._tables.add(table)
        self._keep_node_limit()

    def count_query(self, tokens: int, found: int, lost: int = 0) -> None:
        """Count a request that looked up `tokens` tokens and found `found` of them.

        It found `lost` more that it must compute; see :class:`Match`.
        """
        if self._enabled:
            self._hits += found > 0
            self._misses += found == 0
            self._query_tokens += tokens
            self._hit_tokens += found
            self._lost_tokens += lost

    def publish(self, table: PageTable, tokens: Sequence[int], computed: int) -> None:
        """Let other sequences find the first `computed` tokens, which are in the table's pages.

        If the tree already has some of these tokens, the table takes the tree's full pages instead
        of its own: both hold the same bits. This call is cheap if nothing is new.
        """
        cursor = table.cursor
        if cursor is None or cursor.end >= computed:
            return
        run = TokenArray("i", tokens[cursor.end : computed])
        while run and (child := self._tree.follow(cursor, run)) is not None:
            run = run[len(run) - (computed - child.end) :]  # the tokens after the child
            cursor = child
            self._share_pages(table, child)
        table.cursor = self._tree.append(cursor, run, table.pages, table.windows)
        self._keep_node_limit()

    def unpublish(self, table: PageTable) -> None:
        """Remove the table's published tokens from the tree, because their values may be wrong.

        The sequence publishes nothing more. This removes the nodes on its path, except nodes that
        other sequences hold or have continued.
        """
        cursor, table.cursor = table.cursor, None
        if cursor is not None:
            self._tree.leave(cursor)
            self._tree.prune(cursor)

    def _share_pages(self, table: PageTable, node: Node) -> None:
        first = node.start // PAGE_TOKENS
        for index in range(first, node.end // PAGE_TOKENS):
            page, own = node.pages[index - first], table.pages[index]
            if page != own:
                self._pool.hold(page)
                self._pool.let_go(own)
                table.pages[index] = page
            if self._windows:
                self._share_windows(table, node, index)
        if node.end % PAGE_TOKENS:  # the tree's windowed page may be revoked
            self._tree.replace_windowed_page(node, node.end // PAGE_TOKENS, table.windows)

    def _share_windows(self, table: PageTable, node: Node, number: int) -> None:
        """Let the table take the tree's windowed pages with this number.

        If the tree's ticket is stale, the tree takes the table's page: both hold the same bits.
        """
        at = number - node.start // PAGE_TOKENS
        groups = zip(self._windows, node.windows, table.windows, strict=True)
        shared = [group.share(window, number, own[at]) for group, own, window in groups]
        if not all(shared):
            self._tree.replace_windowed_page(node, number, table.windows)

    # --- snapshots -------------------------------------------------------------------------------

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
        self.publish(table, tokens, computed)
        cursor = table.cursor
        if cursor is not None and self._snapshots.of(cursor) is None:
            self._tree.set_state(cursor, table.snapshot)
        self._drop_snapshot(table)

    def _drop_snapshot(self, table: PageTable) -> None:
        if table.snapshot is not None and self._snapshots:
            self._snapshots.pool.let_go(table.snapshot)
            table.snapshot = None

    # --- eviction --------------------------------------------------------------------------------

    def _make_room(self, pages: int) -> None:
        """Evict nodes until `pages` pages are free."""
        while self._pool.free < pages:
            if not self._evict():
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
            self._tree.replace_end_page(node, pages)
            node = node.parent

    def _keep_node_limit(self) -> None:
        while self._most_nodes and self._tree.nodes > self._most_nodes and self._evict():
            pass

    def _evict(self) -> bool:
        evicted = self._tree.evict(self._save) is not None
        self._evictions += evicted
        return evicted

    # --- disk ------------------------------------------------------------------------------------

    def find_on_disk(
        self, match: Match, tokens: Sequence[int], most: int | None = None
    ) -> Restore | None:
        """Find pages on disk that continue the full pages of the match; None if there are none.

        See `match` for `most`. Changes nothing.
        """
        most = len(tokens) - 1 if most is None else most
        first, end = match.length // PAGE_TOKENS, most // PAGE_TOKENS
        if not self._tiers or not self._enabled or first >= end:
            return None
        run = TokenArray("i", tokens[: end * PAGE_TOKENS])
        found = (tier.find(match.salt, run, first) for tier in self._tiers)
        return next((restore for restore in found if restore is not None), None)

    def begin_restore(self, restore: Restore) -> None:
        """Start to read the pages that `find_on_disk` found."""
        restore.tier.begin(restore)

    def load(self, table: PageTable, restore: Restore, most: int) -> int:
        """Append up to `most` pages that have been read to the table. Returns how many.

        The table must end just before the first of these pages. If free pages are short, it gets
        fewer. If the restore ends with a snapshot, the table continues from that snapshot.
        """
        loaded = 0
        restore.tier.check(restore)
        while loaded < most and restore.ready:
            if restore.awaits_snapshot:
                self._load_snapshot(table, restore)
                break
            if not self.grow(table, (len(table.pages) + 1) * PAGE_TOKENS):
                break
            windows = [window.pages[-1] for window in table.windows]
            restore.tier.load(restore, table.pages[-1], windows)
            self.give_back(table, restore.prefix.tokens, len(table.pages) * PAGE_TOKENS)
            loaded += 1
        return loaded

    def _load_snapshot(self, table: PageTable, restore: Restore) -> None:
        """Let the table continue from the snapshot that was read. Cancel if no snapshot is free."""
        assert self._snapshots is not None
        snapshot = self._snapshots.take()
        if snapshot is None:
            restore.tier.cancel(restore)
            restore.ready.clear()
            return
        restore.tier.load_snapshot(restore, snapshot)
        self.copied(table)
        table.state = table.snapshot = snapshot
        self._snapshots.pool.hold(snapshot)
        self.end_snapshot(table, restore.prefix.tokens, len(restore.prefix.tokens))

    def restored(self, table: PageTable, restore: Restore, computed: int) -> int:
        """Number of computed tokens of a table after `load`; before, the table had `computed`.

        A model with fixed-size state needs the complete restore: its only snapshot comes last.
        """
        if self._snapshots and not restore.is_complete:
            return computed
        return len(table.pages) * PAGE_TOKENS

    def cancel_restore(self, restore: Restore) -> None:
        """Cancel a restore: its sequence no longer waits for it."""
        restore.tier.cancel(restore)

    def lend(self, tier: DiskTier) -> None:
        """Let requests find the pages of a further tier until `take_back`."""
        self._tiers.append(tier)

    def take_back(self, tier: DiskTier) -> None:
        """Let no more requests find the pages of a tier that was lent."""
        self._tiers.remove(tier)

    def close(self, *, keep: bool) -> None:
        """Close the disk tier, if there is one. With `keep`, first save full pages in memory."""
        if self._disk is not None:
            self._disk.close(self._warm_pages() if keep else ())

    def _save(self, node: Node) -> None:
        """Let the disk tier save the full pages of a node that is evicted, the last page first.

        The content of these pages stays until the next step. Before that, the disk tier copies it.
        """
        if self._disk is not None and self._enabled:
            for page in self._full_pages(node):
                self._disk.save(page)

    def _full_pages(self, node: Node) -> Iterator[WarmPage]:
        """The full pages of a node, the last first. Omits pages whose windowed pages are
        revoked."""
        first, end = node.start // PAGE_TOKENS, node.end // PAGE_TOKENS
        if first < end:
            salt, tokens = self._tree.path(node)
            for index in range(end - 1, first - 1, -1):
                groups = zip(self._windows, node.windows, strict=True)
                pages = [group.pool.page(own[index - first]) for group, own in groups]
                windows = tuple(page for page in pages if page is not None)
                position = (index + 1) * PAGE_TOKENS
                snapshot = None
                if self._snapshots and position == node.end:
                    snapshot = self._snapshots.of(node)
                if len(windows) == len(pages):
                    prefix, page = tokens[:position], node.pages[index - first]
                    yield WarmPage(salt, prefix, page, windows, snapshot)

    def copy_pages(
        self, tier: DiskTier, salt: Salt, tokens: TokenArray[int], first: int, most: int
    ) -> int:
        """Let a tier save full pages of `tokens`, at most `most` from page `first` on.

        Only the last page of `tokens` brings its snapshot. Returns how many pages are in memory
        without a gap.
        """
        match, number = self._tree.match(salt, tokens), first
        last = min(first + most, match.length // PAGE_TOKENS)
        for node in match.path:
            if node.end // PAGE_TOKENS <= number:
                continue
            for page in reversed(list(self._full_pages(node))):
                position = len(page.tokens) // PAGE_TOKENS - 1
                if position > number or number == last:
                    return number - first
                if position == number:
                    whole = len(page.tokens) == len(tokens)
                    tier.save(page if whole else replace(page, snapshot=None))
                    number += 1
        return number - first

    def erase(self, salt: Salt, tokens: Sequence[int]) -> int:
        """Drop the end of a prefix that no sequence holds and no other prefix continues.

        Files keep their pages. Returns how many tokens it dropped.
        """
        before, match = self._tree.tokens, self._tree.match(salt, TokenArray("i", tokens))
        if match.path and match.length == match.path[-1].end:
            self._tree.prune(match.path[-1])
        return before - self._tree.tokens

    def _warm_pages(self) -> Iterator[WarmPage]:
        """All full pages: the most recently used first, and each page before those that follow
        it."""
        for node in sorted(self._tree.walk(), key=lambda node: (-node.last_used, node.start)):
            yield from reversed(list(self._full_pages(node)))

    # --- control and statistics ------------------------------------------------------------------

    def set_enabled(self, enabled: bool) -> None:
        """Switch the prefix cache on or off. Switching it off drops all prefixes.

        Sequences that run at that moment publish nothing more.
        """
        if not enabled:
            self.flush()
        self._enabled = enabled

    def flush(self) -> None:
        """Drop all prefixes, on disk too.

        Running sequences keep their pages, and publish nothing more.
        """
        for table in self._tables:
            table.cursor = None
        self._tree.clear()
        for tier in self._tiers:
            tier.flush()

    def stats(self) -> PrefixCacheStats:
        """Figures of the prefix cache. Any thread may call this.

        It takes no lock, so the figures may include only some of the changes of a step.
        """
        return PrefixCacheStats(
            enabled=self._enabled,
            hits=self._hits,
            misses=self._misses,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            lost_tokens=self._lost_tokens,
            nodes=self._tree.nodes,
            cached_tokens=self._tree.tokens,
            cached_bytes=self._cached_bytes,
            capacity_bytes=self._memory.bytes,
            evictions=self._evictions,
            disk=None if self._disk is None else self._disk.stats(),
        )

    @property
    def _cached_bytes(self) -> int:
        kept = self._pool.kept * self._memory.page_bytes
        for group in self._windows:
            kept += group.pool.kept * group.memory.page_bytes
        if self._snapshots:
            kept += self._snapshots.pool.kept * self._memory.snapshot_bytes
        return kept

    def check_integrity(self) -> None:
        """Check that every page has exactly the right owners. O(pages + nodes), for tests.

        Raises:
            AssertionError: names the wrong page or node, and the fault.
        """
        self._tree.check_integrity([t.cursor for t in self._tables if t.cursor is not None])
        held = Counter(page for table in self._tables for page in table.pages)
        held.update(table.source for table in self._tables if table.source is not None)
        kept = Counter(page for node in self._tree.walk() for page in node.pages)
        self._pool.check_integrity(held, kept)
        for table in self._tables:
            assert len(set(table.pages)) == len(table.pages), f"a table repeats {table.pages}"
            if table.cursor is not None:
                match = _path(table.cursor)
                full = match.pages[: match.length // PAGE_TOKENS]
                assert table.pages[: len(full)] == full, "a table and its path name different pages"
                for group, window in zip(self._windows, table.windows, strict=False):
                    group.check_path(window, match)
        for number in range(len(self._windows)):
            self._check_window(number)
        if self._snapshots:
            self._check_snapshots(self._snapshots)

    def _check_window(self, number: int) -> None:
        group = self._windows[number]
        held: Counter[int] = Counter()
        for table in self._tables:
            for window in table.windows[number : number + 1]:
                end = window.first + len(window.pages)
                assert end == len(table.pages), f"a window ends at {end}, not {len(table.pages)}"
                assert (window.source is None) == (table.source is None), "a group has no source"
                held.update(window.pages)
                held.update(() if window.source is None else (window.source,))
        tickets = (ticket for node in self._tree.walk() for ticket in node.windows[number])
        group.pool.check_integrity(held, _count_pages(group.pool, tickets))

    def _check_snapshots(self, snapshots: Snapshots) -> None:
        in_tables = (snapshot for t in self._tables for snapshot in (t.state, t.snapshot))
        held = Counter(snapshot for snapshot in in_tables if snapshot is not None)
        kept = _count_pages(snapshots.pool, (node.state for node in self._tree.walk()))
        snapshots.pool.check_integrity(held, kept)


def _count_pages(pool: RevocablePool, tickets: Iterable[int]) -> Counter[int]:
    """Number of valid tickets for each page."""
    return Counter(page for page in map(pool.page, tickets) if page is not None)


def _path(node: Node) -> Match:
    """All tokens from the root to the end of a node, as a match."""
    path = [node]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return Match(None, node.end, tuple(path[::-1]))
