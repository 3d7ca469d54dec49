"""Prefixes that the cache keeps: sequences publish them, and others find them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.cache.radix import Match, RadixTree
from heddle.disk.tier import WarmPage
from heddle.state import PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.cache.page_tables import PageTable
    from heddle.cache.pools import Pools
    from heddle.cache.radix import Node, Salt
    from heddle.disk.tier import DiskTier


class CachedPrefixes:
    """Finds and keeps prefixes in pages that sequences have computed.

    It owns the prefix tree and the figures of hits. The scheduler calls it; any thread may read the
    figures. Nothing here gives a page to a sequence: `SequencePages.attach` does.

    Args:
        most_nodes: most nodes of the tree; 0: as many as the pages allow.
        disk: saves the full pages of evicted nodes; None: they are dropped.

    Attributes:
        enabled: whether prefixes are found and kept.
        tree: the prefixes. Other rooms do not use it.
        hits, misses, query_tokens, hit_tokens, lost_tokens, evictions: see `PrefixCacheStats`.
    """

    def __init__(
        self, pools: Pools, *, enabled: bool, most_nodes: int, disk: DiskTier | None
    ) -> None:
        self._pool = pools.pages
        self._windows = pools.windows
        self._snapshots = pools.snapshots
        self._most_nodes = most_nodes
        self._disk = disk
        self.enabled = enabled
        self.tree = RadixTree(
            pools.pages,
            [group.pool for group in pools.windows],
            pools.snapshots.pool if pools.snapshots else None,
        )
        self.hits = self.misses = self.query_tokens = self.hit_tokens = 0
        self.lost_tokens = self.evictions = 0

    @property
    def saves(self) -> bool:
        """Whether eviction first saves pages on disk."""
        return self._disk is not None

    def tick(self) -> None:
        """Advance the clock. Nodes used from now on are more recently used than all others."""
        self.tree.clock += 1

    def match(self, salt: Salt, tokens: Sequence[int], most: int | None = None) -> Match:
        """Find the longest cached prefix of the first `most` tokens.

        By default, `most` leaves out the last token: a step must compute it in any case.
        """
        if not self.enabled:
            return Match(salt, 0, ())
        run = TokenArray("i", tokens[: len(tokens) - 1 if most is None else most])
        return self._resumable(self.tree.match(salt, run))

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

    def publish(self, table: PageTable, tokens: Sequence[int], computed: int) -> None:
        """Let other sequences find the first `computed` tokens, which are in the table's pages.

        If the tree already has some of these tokens, the table takes the tree's full pages instead
        of its own: both hold the same bits. This call is cheap if nothing is new.
        """
        cursor = table.cursor
        if cursor is None or cursor.end >= computed:
            return
        run = TokenArray("i", tokens[cursor.end : computed])
        while run and (child := self.tree.follow(cursor, run)) is not None:
            run = run[len(run) - (computed - child.end) :]  # the tokens after the child
            cursor = child
            self._share_pages(table, child)
        table.cursor = self.tree.append(cursor, run, table.pages, table.windows)
        self.keep_node_limit()

    def unpublish(self, table: PageTable) -> None:
        """Remove the table's published tokens from the tree, because their values may be wrong.

        The sequence publishes nothing more. This removes the nodes on its path, except nodes that
        other sequences hold or have continued.
        """
        cursor, table.cursor = table.cursor, None
        if cursor is not None:
            self.tree.leave(cursor)
            self.tree.prune(cursor)

    def erase(self, salt: Salt, tokens: Sequence[int]) -> int:
        """Drop the end of a prefix that no sequence holds and no other prefix continues.

        Files keep their pages. Returns how many tokens it dropped.
        """
        before, match = self.tree.tokens, self.tree.match(salt, TokenArray("i", tokens))
        if match.path and match.length == match.path[-1].end:
            self.tree.prune(match.path[-1])
        return before - self.tree.tokens

    def count_query(self, tokens: int, found: int, lost: int = 0) -> None:
        """Count a request that looked up `tokens` tokens and found `found` of them.

        It found `lost` more that it must compute; see :class:`Match`.
        """
        if self.enabled:
            self.hits += found > 0
            self.misses += found == 0
            self.query_tokens += tokens
            self.hit_tokens += found
            self.lost_tokens += lost

    def keep_node_limit(self) -> None:
        """Evict nodes beyond the most that the tree may have."""
        while self._most_nodes and self.tree.nodes > self._most_nodes and self.evict():
            pass

    def evict(self) -> bool:
        """Evict the node that was used least recently. False: sequences hold all nodes."""
        evicted = self.tree.evict(self._save) is not None
        self.evictions += evicted
        return evicted

    def warm_pages(self) -> Iterator[WarmPage]:
        """All full pages: the most recently used first, and each page before those that follow
        it."""
        for node in sorted(self.tree.walk(), key=lambda node: (-node.last_used, node.start)):
            yield from reversed(list(self.full_pages(node)))

    def full_pages(self, node: Node) -> Iterator[WarmPage]:
        """The full pages of a node, the last first. Omits pages whose windowed pages are
        revoked."""
        first, end = node.start // PAGE_TOKENS, node.end // PAGE_TOKENS
        if first < end:
            salt, tokens = self.tree.path(node)
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

    def _save(self, node: Node) -> None:
        """Let the disk tier save the full pages of a node that is evicted, the last page first.

        The content of these pages stays until the next step. Before that, the disk tier copies it.
        """
        if self._disk is not None and self.enabled:
            for page in self.full_pages(node):
                self._disk.save(page)

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
            self.tree.replace_windowed_page(node, node.end // PAGE_TOKENS, table.windows)

    def _share_windows(self, table: PageTable, node: Node, number: int) -> None:
        """Let the table take the tree's windowed pages with this number.

        If the tree's ticket is stale, the tree takes the table's page: both hold the same bits.
        """
        at = number - node.start // PAGE_TOKENS
        groups = zip(self._windows, node.windows, table.windows, strict=True)
        shared = [group.share(window, number, own[at]) for group, own, window in groups]
        if not all(shared):
            self.tree.replace_windowed_page(node, number, table.windows)
