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

That is the group of all positions. A table holds of each windowed group only the pages that its
next token sees, and of fixed-size state the snapshot it goes on from, until that is copied. The
tree names both only until their pools revoke them, so there too whatever no table holds can be had.
A prefix is found as far as a sequence can go on from it: where its windows and a snapshot are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.cache.pages import PagePool
from heddle.cache.radix import Match, Node, RadixTree, Run
from heddle.cache.room import Room
from heddle.cache.snapshots import Snapshots
from heddle.cache.windows import WindowGroup
from heddle.disk.tier import Restore, WarmPage
from heddle.state import PAGE_TOKENS, pages_for
from heddle.step import WindowPages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from heddle.cache.pages import RevocablePool
    from heddle.cache.radix import Salt
    from heddle.disk.tier import DiskStats, DiskTier
    from heddle.state import StateMemory

__all__ = ["CacheManager", "Match", "PageTable", "PrefixCacheStats", "Restore", "Room", "pages_for"]


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one sequence: position p lives in `pages[p // PAGE_TOKENS]`.

    Starts empty. Written by the manager alone; others read.

    Attributes:
        pages: page ids.
        cursor: where in the tree the published tokens end; None if it publishes nothing.
        source: page whose content belongs in the table's next page before anything is computed
            there; None if there is nothing to copy.
        windows: pages of each windowed group, up to the same position as `pages`.
        state: snapshot to copy to the slot's state before anything is computed; None for none.
        snapshot: snapshot that the step in flight copies the slot's state to; None for none.
    """

    pages: list[int] = field(default_factory=list)
    cursor: Node | None = None
    source: int | None = None
    windows: list[WindowPages] = field(default_factory=list)
    state: int | None = None
    snapshot: int | None = None


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
        cached_bytes, capacity_bytes: of pages and snapshots that are kept, and of all there are.
        evictions: runs that had to go.
        disk: of the disk tier; None without one.
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
    disk: DiskStats | None

    @property
    def hit_rate(self) -> float:
        """Part of the requests that found something: 0 to 1; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def mean_hit_tokens(self) -> float:
        """Tokens that a request found which found any."""
        return self.hit_tokens / max(1, self.hits)


class CacheManager:
    """Hands pages to page tables and keeps prefixes in those that no table holds.

    Not thread-safe but for `stats`: its scheduler is its one caller. Growing a table evicts what
    only the tree keeps, and never takes a page from another table: when those have them all it is
    the scheduler that decides who gives back.

    Args:
        memory: how many pages there are of each group, and snapshots.
        enabled: whether prefixes are kept.
        most_nodes: of the tree; 0 for as many as the pages allow.
        disk: where full pages go that are evicted, and from where they come back; None for nowhere.
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
        self._windows = [WindowGroup(one, number) for number, one in enumerate(memory.windows)]
        self._snapshots = (
            Snapshots(memory.snapshots, memory.snapshot_tokens) if memory.snapshot_bytes else None
        )
        self._tree = RadixTree(
            self._pool,
            [group.pool for group in self._windows],
            self._snapshots.pool if self._snapshots else None,
        )
        self._tables: set[PageTable] = set()  # with pages or a cursor
        self._most_nodes = most_nodes
        self._enabled = enabled
        self._disk = disk
        self._hits = self._misses = self._query_tokens = self._hit_tokens = self._evictions = 0

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self._pool.size

    @property
    def has_windows(self) -> bool:
        """Whether some layers see a window only."""
        return bool(self._windows)

    @property
    def available(self) -> int:
        """Pages that `grow` could hand out now: free ones, and those that only the tree keeps."""
        return self._pool.available

    @property
    def room(self) -> Room:
        """The same of each group."""
        windows = (group.pool.available for group in self._windows)
        return Room((self._pool.available, *windows))

    # --- tables ----------------------------------------------------------------------------------

    def grow(self, table: PageTable, tokens: int) -> bool:
        """Let the table cover positions [0, tokens); false and unchanged if pages are short."""
        missing = pages_for(tokens) - len(table.pages)
        if missing <= 0:
            return True
        if missing > self.available:
            return False
        if any(missing > group.pool.available for group in self._windows):
            return False
        if missing > self._pool.free:
            self._make_room(missing)
        self._tables.add(table)
        for _ in range(missing):
            table.pages.append(self._pool.take())
        if self._windows:
            table.windows = table.windows or [WindowPages() for _ in self._windows]
            for group, window in zip(self._windows, table.windows, strict=True):
                window.pages += [group.pool.take() for _ in range(missing)]
        return True

    def give_back(self, table: PageTable, tokens: Sequence[int], computed: int) -> None:
        """Give back windowed pages that no position from `computed` on sees; publish them first."""
        for group, window in zip(self._windows, table.windows, strict=False):
            first = group.memory.first_page(computed)
            if first > window.first:
                self.publish(table, tokens, computed)
                group.give_back(window, first)

    def claim(self, table: PageTable, tokens: int) -> Room:
        """Pages that the table still needs to cover `tokens`."""
        new = pages_for(tokens) - len(table.pages)
        if not self._windows:
            return Room((new,))
        held = table.windows or [WindowPages() for _ in self._windows]
        pairs = zip(self._windows, held, strict=True)
        return Room((new, *(group.claim(window, new) for group, window in pairs)))

    def copied(self, table: PageTable) -> None:
        """What the table goes on from is where it belongs."""
        if table.source is not None:
            self._pool.let_go(table.source)
            table.source = None
            for group, window in zip(self._windows, table.windows, strict=True):
                group.copied(window)
        if table.state is not None and self._snapshots:
            self._snapshots.pool.let_go(table.state)
            table.state = None

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
        for group, window in zip(self._windows, table.windows, strict=False):
            group.release(window)
        table.windows = []
        self._drop_snapshot(table)

    # --- prefixes --------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether prefixes are found and kept."""
        return self._enabled

    def tick(self) -> None:
        """Time goes on: what is used from now on is younger than what was used before."""
        self._tree.clock += 1

    def match(self, salt: Salt, tokens: Sequence[int], most: int | None = None) -> Match:
        """What is there of a sequence's first `most` tokens, or of all but the last.

        The last one must be computed, whatever is there.
        """
        if not self._enabled:
            return Match(salt, 0, ())
        run = Run("i", tokens[: len(tokens) - 1 if most is None else most])
        return self._resumable(self._tree.match(salt, run))

    def whole_pages(self, match: Match) -> Match:
        """As much of the match as fills whole pages."""
        return self._resumable(match.whole_pages(), whole=True)

    def _resumable(self, match: Match, *, whole: bool = False) -> Match:
        """As much of the match as a sequence can go on from."""
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

    def cost(self, match: Match, tokens: int) -> Room:
        """By how much `room` will sink until a table attached there covers `tokens`.

        A page to copy from counts although it is let go after a step.
        """
        new = pages_for(tokens) - match.length // PAGE_TOKENS
        everything = new + sum(not self._pool.is_held(page) for page in match.pages)
        return Room((everything, *(group.cost(match, new) for group in self._windows)))

    def attach(self, table: PageTable, match: Match) -> None:
        """Let the table cover what was matched, in place of what it had.

        Whole pages are shared. A page that the match ends in becomes `source`, to be copied.
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
        table.cursor = self._tree.append(cursor, run, table.pages, table.windows)
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
            if self._windows:
                self._share_windows(table, node, index)
        if node.end % PAGE_TOKENS:  # the tree's windowed page may be gone
            self._tree.renew(node, node.end // PAGE_TOKENS, table.windows)

    def _share_windows(self, table: PageTable, node: Node, number: int) -> None:
        """Take the tree's windowed pages with this number; the tree takes the table's where stale.

        Both hold the same bits.
        """
        at = number - node.start // PAGE_TOKENS
        groups = zip(self._windows, node.windows, table.windows, strict=True)
        shared = [group.share(window, number, own[at]) for group, own, window in groups]
        if not all(shared):
            self._tree.renew(node, number, table.windows)

    # --- snapshots -------------------------------------------------------------------------------

    @property
    def snapshot_tokens(self) -> int:
        """Snapshots are taken at multiples of this; 0 if the model has no fixed-size state."""
        return self._snapshots.every if self._snapshots else 0

    def begin_snapshot(self, table: PageTable) -> int | None:
        """A snapshot to copy the state to that the next step leaves; None if it is not to be kept.

        The table holds it until `end_snapshot`.
        """
        if self._snapshots and table.cursor is not None:
            table.snapshot = self._snapshots.take()
        return table.snapshot

    def end_snapshot(self, table: PageTable, tokens: Sequence[int], computed: int) -> None:
        """Publish the snapshot that was taken after `computed` tokens, if one was taken."""
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
        gone = self._tree.evict(self._save) is not None
        self._evictions += gone
        return gone

    # --- disk ------------------------------------------------------------------------------------

    def find_on_disk(
        self, match: Match, tokens: Sequence[int], most: int | None = None
    ) -> Restore | None:
        """Pages on disk that go on where the match's whole pages end; `most` as for the match.

        None without any. Changes nothing.
        """
        most = len(tokens) - 1 if most is None else most
        first, end = match.length // PAGE_TOKENS, most // PAGE_TOKENS
        if self._disk is None or not self._enabled or first >= end:
            return None
        return self._disk.find(match.salt, Run("i", tokens[: end * PAGE_TOKENS]), first)

    def begin_restore(self, restore: Restore) -> None:
        """Have the pages read that were found."""
        if self._disk is not None:
            self._disk.begin(restore)

    def load(self, table: PageTable, restore: Restore, most: int) -> int:
        """Let the table grow by pages that have been read, at most so many; returns how many.

        It ends with the page before the first of them. Fewer if pages are short. The snapshot that
        comes last is what the table goes on from.
        """
        loaded = 0
        if self._disk is not None:
            self._disk.check(restore)
            while loaded < most and restore.ready:
                if restore.awaits_snapshot:
                    self._load_snapshot(table, restore)
                    break
                if not self.grow(table, (len(table.pages) + 1) * PAGE_TOKENS):
                    break
                windows = [window.pages[-1] for window in table.windows]
                self._disk.load(restore, table.pages[-1], windows)
                self.give_back(table, restore.prefix.tokens, len(table.pages) * PAGE_TOKENS)
                loaded += 1
        return loaded

    def _load_snapshot(self, table: PageTable, restore: Restore) -> None:
        """Go on from the snapshot that was read. Without room for it the restore fails."""
        assert self._disk is not None
        assert self._snapshots is not None
        snapshot = self._snapshots.take()
        if snapshot is None:
            self._disk.cancel(restore)
            restore.ready.clear()
            return
        self._disk.load_snapshot(restore, snapshot)
        self.copied(table)
        table.state = table.snapshot = snapshot
        self._snapshots.pool.hold(snapshot)
        self.end_snapshot(table, restore.prefix.tokens, len(restore.prefix.tokens))

    def restored(self, table: PageTable, restore: Restore, computed: int) -> int:
        """How far a table that was at `computed` tokens is by what has been loaded.

        A state of fixed size is there for the last of them only.
        """
        if self._snapshots and not restore.is_complete:
            return computed
        return len(table.pages) * PAGE_TOKENS

    def cancel_restore(self, restore: Restore) -> None:
        """No one waits for it any more."""
        if self._disk is not None:
            self._disk.cancel(restore)

    def close(self, *, keep: bool) -> None:
        """Close the disk tier, if there is one, and have it `keep` what is in memory."""
        if self._disk is not None:
            self._disk.close(self._warm_pages() if keep else ())

    def _save(self, node: Node) -> None:
        """Have the full pages of a node that is to go written, the last one first.

        Their content stays until the next step writes; by then it has been copied.
        """
        if self._disk is not None and self._enabled:
            for page in self._full_pages(node):
                self._disk.save(page)

    def _full_pages(self, node: Node) -> Iterator[WarmPage]:
        """Each full page of a node whose windowed pages are there too, the last one first."""
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

    def _warm_pages(self) -> Iterator[WarmPage]:
        """All full pages, the most recently used first, those that lead to others before them."""
        for node in sorted(self._tree.walk(), key=lambda node: (-node.last_used, node.start)):
            yield from reversed(list(self._full_pages(node)))

    # --- control and sight -----------------------------------------------------------------------

    def set_enabled(self, enabled: bool) -> None:
        """Find and keep prefixes from now on, or drop all and keep none.

        Sequences that run at that moment publish no more, whichever it is.
        """
        if not enabled:
            self.flush()
        self._enabled = enabled

    def flush(self) -> None:
        """Drop all prefixes, on disk too.

        Sequences that run keep their pages, and publish no more.
        """
        for table in self._tables:
            table.cursor = None
        self._tree.clear()
        if self._disk is not None:
            self._disk.flush()

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
                match = _path(table.cursor)
                whole = match.pages[: match.length // PAGE_TOKENS]
                assert table.pages[: len(whole)] == whole, "a table and its path name other pages"
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
                assert (window.source is None) == (table.source is None), "one group is not copied"
                held.update(window.pages)
                held.update(() if window.source is None else (window.source,))
        tickets = (ticket for node in self._tree.walk() for ticket in node.windows[number])
        group.pool.check_integrity(held, _named(group.pool, tickets))

    def _check_snapshots(self, snapshots: Snapshots) -> None:
        held = Counter(
            one for t in self._tables for one in (t.state, t.snapshot) if one is not None
        )
        named = _named(snapshots.pool, (node.state for node in self._tree.walk()))
        snapshots.pool.check_integrity(held, named)


def _named(pool: RevocablePool, tickets: Iterable[int]) -> Counter[int]:
    """How often each page is named by tickets that are not stale."""
    return Counter(page for page in map(pool.page, tickets) if page is not None)


def _path(node: Node) -> Match:
    """All tokens that lead to the end of a node, as a match."""
    path = [node]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return Match(None, node.end, tuple(path[::-1]))
