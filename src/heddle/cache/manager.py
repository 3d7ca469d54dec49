"""The only door to KV pages: page tables grow and are released here, prefixes are found and kept.

Ownership::

    Sequence --has--> PageTable --holds, once per entry--> page <--keeps, once per name-- Node
                          |                                 |                              |
                          +--holds--> source of a copy      +-- no owner: free             |
                          +--cursor, locks---------------------------------------------> Node

A table holds the pages it names until it is released; the tree keeps those its nodes name until it
evicts them, which is when pages are short, and never nodes that a cursor locks. A page has one
writer at most: whole pages are shared and never written again, and the page that a prefix ends in
is copied before its tokens are gone on with.

A table's cursor is the node where what the sequence has published ends. What that node's path names
the table holds too, page for page, once `lend` has seen to the boundaries. So whatever no table
holds can be had by eviction, and `available` is exact without a search.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.cache.pages import PagePool
from heddle.cache.radix import Match, Node, RadixTree, Run, pages_for
from heddle.step import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.cache.radix import Salt

__all__ = ["CacheManager", "Match", "PageTable", "PrefixCacheStats", "pages_for"]


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one sequence: position p lives in `pages[p // PAGE_TOKENS]`.

    Starts empty. Written by the manager alone; others read.

    Attributes:
        pages: page ids.
        cursor: where in the tree the published tokens end; None if it publishes nothing.
        source: page whose content belongs in the table's next page before anything is computed
            there; None if there is nothing to copy.
    """

    pages: list[int] = field(default_factory=list)
    cursor: Node | None = None
    source: int | None = None


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """The prefix cache at one moment, and totals since the start.

    Attributes:
        enabled: whether prompts are looked up and prefixes kept.
        hits, misses: requests that found some tokens of their prompt, and those that found none.
        query_tokens: prompt tokens looked up.
        hit_tokens: how many of them were found, and not computed.
        nodes: runs of tokens that are kept.
        cached_tokens: how many tokens they hold.
        cached_bytes, capacity_bytes: of KV pages that are kept, and of all there are.
        evictions: runs that had to go.
    """

    enabled: bool
    hits: int
    misses: int
    query_tokens: int
    hit_tokens: int
    nodes: int
    cached_tokens: int
    cached_bytes: int
    capacity_bytes: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        """Part of the requests that found something: 0 to 1; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def mean_hit_tokens(self) -> float:
        """Tokens that a request found which found any."""
        return self.hit_tokens / max(1, self.hits)


class CacheManager:
    """Hands `pages` pages to page tables and keeps prefixes in those that no table holds.

    Not thread-safe but for `stats`: its scheduler is its one caller. Growing a table evicts what
    only the tree keeps, and never takes a page from another table: when those have them all it is
    the scheduler that decides who gives back.

    Args:
        pages: how many there are.
        page_bytes: size of one.
        enabled: whether prefixes are kept.
        most_nodes: of the tree; 0 for as many as the pages allow.
    """

    def __init__(
        self, pages: int, page_bytes: int = 0, *, enabled: bool = True, most_nodes: int = 0
    ) -> None:
        self._pool = PagePool(pages)
        self._page_bytes = page_bytes
        self._tree = RadixTree(self._pool)
        self._tables: set[PageTable] = set()  # with pages or a cursor
        self._most_nodes = most_nodes
        self._enabled = enabled
        self._hits = self._misses = self._query_tokens = self._hit_tokens = self._evictions = 0

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self._pool.size

    @property
    def available(self) -> int:
        """Pages that `grow` could hand out now: free ones, and those that only the tree keeps."""
        return self._pool.size - self._pool.held

    # --- tables ----------------------------------------------------------------------------------

    def grow(self, table: PageTable, tokens: int) -> bool:
        """Let the table cover positions [0, tokens); false and unchanged if pages are short."""
        missing = pages_for(tokens) - len(table.pages)
        if missing <= 0:
            return True
        if missing > self.available:
            return False
        if missing > self._pool.free:
            self._make_room(missing)
        self._tables.add(table)
        for _ in range(missing):
            table.pages.append(self._pool.take())
        return True

    def copied(self, table: PageTable) -> None:
        """The content of `source` is where it belongs."""
        if table.source is not None:
            self._pool.let_go(table.source)
            table.source = None

    def release(self, table: PageTable) -> None:
        """Give every page back. The table is empty then, and may be used again."""
        self._tables.discard(table)
        if table.cursor is not None:
            self._tree.leave(table.cursor)
            table.cursor = None
        self.copied(table)
        for page in table.pages:
            self._pool.let_go(page)
        table.pages.clear()

    # --- prefixes --------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether prefixes are found and kept."""
        return self._enabled

    def tick(self) -> None:
        """Time goes on: what is used from now on is younger than what was used before."""
        self._tree.clock += 1

    def match(self, salt: Salt, tokens: Sequence[int]) -> Match:
        """What is there of a sequence's tokens, all but the last: that one must be computed."""
        if not self._enabled:
            return Match(salt, 0, ())
        return self._tree.match(salt, Run("i", tokens[:-1]))

    def cost(self, match: Match, tokens: int) -> int:
        """By how much `available` will sink until a table attached there covers `tokens`.

        A page to copy from counts although it is let go after a step.
        """
        new = pages_for(tokens) - match.length // PAGE_TOKENS
        return new + sum(not self._pool.is_held(page) for page in match.pages)

    def attach(self, table: PageTable, match: Match) -> None:
        """Let the table cover what was matched, in place of what it had.

        Whole pages are shared. A page that the match ends in becomes `source`, to be copied.
        """
        if not self._enabled:
            return
        pages = match.pages
        for page in pages:
            self._pool.hold(page)
        cursor = self._tree.enter(match)
        self.release(table)
        table.cursor = cursor
        if match.length % PAGE_TOKENS:
            table.source = pages.pop()
        table.pages += pages
        self._tables.add(table)
        self._keep_node_limit()

    def count_query(self, tokens: int, found: int) -> None:
        """Note for the statistics that a request looked up `tokens` and attached `found`."""
        if self._enabled:
            self._hits += found > 0
            self._misses += found == 0
            self._query_tokens += tokens
            self._hit_tokens += found

    def publish(self, table: PageTable, tokens: Sequence[int], computed: int) -> None:
        """Let others find the first `computed` tokens of a sequence, all in the table's pages.

        Tokens that the tree has by now stay where they are, and the table takes the tree's pages
        for its own where they are whole: they hold the same bits. Cheap if nothing is new.
        """
        cursor = table.cursor
        if cursor is None or cursor.end >= computed:
            return
        run = Run("i", tokens[cursor.end : computed])
        while run and (child := self._tree.follow(cursor, run)) is not None:
            run = run[len(run) - (computed - child.end) :]  # what is still to come
            cursor = child
            self._share_pages(table, child)
        table.cursor = self._tree.append(cursor, run, table.pages)
        self._keep_node_limit()

    def disown(self, table: PageTable) -> None:
        """What the table's sequence computed is not to be trusted: keep none of it.

        The sequence publishes no more. Of what it has published, and found, that much stays which
        others hold or have gone on from.
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

    # --- eviction --------------------------------------------------------------------------------

    def _make_room(self, pages: int) -> None:
        """Have that many pages free, of those that only the tree keeps."""
        while self._pool.free < pages:
            if not self._evict():
                for table in self._tables:
                    self._lend_boundaries(table)
                return

    def _lend_boundaries(self, table: PageTable) -> None:
        """Have the nodes on the table's path name its own pages where they end inside one."""
        node, pages = table.cursor, table.pages
        if node is not None and table.source is not None:  # the copy is not there yet
            pages = [*pages[: node.end // PAGE_TOKENS], table.source]
        while node is not None:
            self._tree.lend(node, pages)
            node = node.parent

    def _keep_node_limit(self) -> None:
        while self._most_nodes and self._tree.nodes > self._most_nodes and self._evict():
            pass

    def _evict(self) -> bool:
        gone = self._tree.evict() is not None
        self._evictions += gone
        return gone

    # --- control and sight -----------------------------------------------------------------------

    def set_enabled(self, enabled: bool) -> None:
        """Find and keep prefixes from now on, or drop all and keep none.

        Sequences that run at that moment publish no more, whichever it is.
        """
        if not enabled:
            self.flush()
        self._enabled = enabled

    def flush(self) -> None:
        """Drop all prefixes. Sequences that run keep their pages, and publish no more."""
        for table in self._tables:
            table.cursor = None
        self._tree.clear()

    def stats(self) -> PrefixCacheStats:
        """Figures. From any thread, without a lock: those of a step may show in part."""
        return PrefixCacheStats(
            enabled=self._enabled,
            hits=self._hits,
            misses=self._misses,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            nodes=self._tree.nodes,
            cached_tokens=self._tree.tokens,
            cached_bytes=self._pool.kept * self._page_bytes,
            capacity_bytes=self._pool.size * self._page_bytes,
            evictions=self._evictions,
        )

    def check_integrity(self) -> None:
        """Prove that every page has exactly the owners it should. O(pages + nodes), for tests.

        Raises:
            AssertionError: saying which page or node is wrong and how.
        """
        self._tree.check_integrity([t.cursor for t in self._tables if t.cursor is not None])
        held = Counter(page for table in self._tables for page in table.pages)
        held.update(table.source for table in self._tables if table.source is not None)
        kept = Counter(page for node in self._tree.walk() for page in node.pages)
        self._pool.check_integrity(held, kept)
        for table in self._tables:
            assert len(set(table.pages)) == len(table.pages), f"a table repeats {table.pages}"
            if table.cursor is not None:
                whole = _path_pages(table.cursor)[: table.cursor.end // PAGE_TOKENS]
                assert table.pages[: len(whole)] == whole, "a table and its path name other pages"


def _path_pages(node: Node) -> list[int]:
    path = [node]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return Match(None, node.end, tuple(path[::-1])).pages
