"""Page tables get pages, share them, and give them back."""

from __future__ import annotations

from typing import Any

from heddle.cache.cached_prefixes import CachedPrefixes
from heddle.cache.page_counts import PageCounts
from heddle.cache.page_tables import PageTable
from heddle.cache.pools import Pools
from heddle.cache.sequence_pages import SequencePages
from heddle.state import PAGE_TOKENS, StateMemory, WindowMemory

TOKENS = list(range(1000))


class Rig:
    """Sequence pages with pools and prefixes of their own."""

    def __init__(self, pages: int, *, disk: Any = None, **memory: Any) -> None:
        self.pools = Pools(StateMemory(pages, **memory))
        self.prefixes = CachedPrefixes(self.pools, enabled=True, most_nodes=0, disk=disk)
        self.pages = SequencePages(self.pools, self.prefixes)

    def begin(self, tokens: int) -> PageTable:
        """A table that has found what it can of so many tokens."""
        table = PageTable()
        self.pages.attach(table, self.prefixes.match(None, TOKENS[:tokens]))
        return table

    def computed(self, tokens: int) -> PageTable:
        """A table whose tokens are computed and published."""
        table = self.begin(tokens)
        assert self.pages.grow(table, tokens)
        self.prefixes.publish(table, TOKENS, tokens)
        return table


def test_a_table_grows_by_what_it_lacks() -> None:
    rig, table = Rig(4), PageTable()
    assert rig.pages.grow(table, 1)
    assert rig.pages.grow(table, PAGE_TOKENS)
    assert table.pages == [0]
    assert rig.pages.grow(table, PAGE_TOKENS + 1)
    assert (table.pages, rig.pages.available) == ([0, 1], 2)


def test_a_windowed_group_that_is_full_lets_no_table_grow() -> None:
    rig, table = Rig(4, windows=(WindowMemory(64, 1),)), PageTable()
    assert not rig.pages.grow(table, 2 * PAGE_TOKENS)
    assert (table.pages, table.windows) == ([], [])
    assert rig.pages.grow(table, PAGE_TOKENS)
    assert rig.pages.available_by_group == PageCounts((3, 0))


def test_nothing_is_evicted_for_a_table_that_may_save_nothing() -> None:
    saved = []

    class Disk:
        def save(self, page: object) -> None:
            saved.append(page)

    for disk, grows in ((Disk(), False), (None, True)):
        rig = Rig(2, disk=disk)
        rig.pages.release(rig.computed(2 * PAGE_TOKENS))
        table = PageTable()
        assert rig.pages.grow(table, PAGE_TOKENS, saves=False) == grows
        assert (rig.prefixes.evictions > 0, saved) == (grows, [])
    assert Rig(2).pages.grow(PageTable(), PAGE_TOKENS, saves=False), "free pages need no eviction"


def test_pages_after_the_tokens_are_given_back_in_all_groups() -> None:
    rig, table = Rig(4, windows=(WindowMemory(64, 4),)), PageTable()
    rig.pages.grow(table, 4 * PAGE_TOKENS)
    rig.pages.shrink(table, 2 * PAGE_TOKENS + 1)
    assert (table.pages, table.windows[0].pages) == ([0, 1, 2], [0, 1, 2])
    rig.pages.shrink(table, 2 * PAGE_TOKENS + 1)
    assert rig.pages.available_by_group == PageCounts((1, 1))


def test_windowed_pages_that_no_later_token_sees_are_published_and_given_back() -> None:
    rig = Rig(4, windows=(WindowMemory(PAGE_TOKENS, 4),))
    table = rig.begin(3 * PAGE_TOKENS)
    rig.pages.grow(table, 3 * PAGE_TOKENS)
    [window] = table.windows
    rig.pages.give_back(table, TOKENS, PAGE_TOKENS - 1)
    assert (window.first, table.cursor and table.cursor.end) == (0, 0)
    rig.pages.give_back(table, TOKENS, 2 * PAGE_TOKENS)
    assert (window.first, window.pages, len(table.pages)) == (1, [1, 2], 3)
    assert table.cursor is not None
    assert table.cursor.end == 2 * PAGE_TOKENS


def test_a_claim_counts_the_pages_that_a_table_lacks() -> None:
    rig, table = Rig(8, windows=(WindowMemory(64, 8, reach=3),)), PageTable()
    assert rig.pages.claim(table, 5 * PAGE_TOKENS) == PageCounts((5, 3))
    rig.pages.grow(table, 2 * PAGE_TOKENS)
    assert rig.pages.claim(table, 5 * PAGE_TOKENS) == PageCounts((3, 1))
    assert Rig(8).pages.claim(PageTable(), 1) == PageCounts((1,))


def test_the_cost_of_a_match_leaves_out_pages_that_others_hold() -> None:
    rig = Rig(8)
    other = rig.computed(2 * PAGE_TOKENS)
    match = rig.prefixes.match(None, TOKENS[: 2 * PAGE_TOKENS + 1])
    assert rig.pages.cost(match, 5 * PAGE_TOKENS) == PageCounts((3,))
    rig.pages.release(other)
    assert rig.pages.cost(match, 5 * PAGE_TOKENS) == PageCounts((5,))


def test_the_page_in_which_a_match_ends_is_held_until_it_is_copied() -> None:
    rig = Rig(8)
    rig.pages.release(rig.computed(PAGE_TOKENS + 8))
    table = rig.begin(PAGE_TOKENS + 8)
    assert (table.pages, table.source, rig.pages.available) == ([0], 1, 6)
    rig.pages.copied(table)
    assert (table.pages, table.source, rig.pages.available) == ([0], None, 7)
    other = rig.begin(PAGE_TOKENS + 8)
    rig.pages.release(other)
    assert (other.source, rig.pages.available) == (None, 7), "or until the table is released"


def test_a_released_table_is_empty() -> None:
    memory: Any = {"snapshots": 2, "snapshot_bytes": 1, "snapshot_tokens": PAGE_TOKENS}
    rig = Rig(8, windows=(WindowMemory(64, 8),), **memory)
    table = rig.begin(PAGE_TOKENS)
    rig.pages.grow(table, PAGE_TOKENS)
    assert rig.pages.begin_snapshot(table) == 0
    rig.pages.release(table)
    assert (table.pages, table.windows, table.cursor, table.snapshot) == ([], [], None, None)
    assert rig.pages.available_by_group == PageCounts((8, 8))
    assert rig.pools.snapshots is not None
    assert rig.pools.snapshots.pool.available == 2


def test_only_a_table_that_publishes_takes_snapshots() -> None:
    rig = Rig(8, snapshots=1, snapshot_bytes=1, snapshot_tokens=PAGE_TOKENS)
    assert rig.pages.snapshot_tokens == PAGE_TOKENS
    first, second = rig.begin(PAGE_TOKENS), rig.begin(PAGE_TOKENS)
    assert rig.pages.begin_snapshot(PageTable()) is None
    assert [rig.pages.begin_snapshot(table) for table in (first, second)] == [0, None]
    assert rig.pages.grow(first, PAGE_TOKENS)
    rig.pages.end_snapshot(first, TOKENS, PAGE_TOKENS)
    assert first.snapshot is None
    assert rig.prefixes.match(None, TOKENS).length == PAGE_TOKENS
    plain = Rig(8)
    assert (plain.pages.snapshot_tokens, plain.pages.begin_snapshot(plain.begin(1))) == (0, None)


def test_tables_that_have_pages_stop_publishing() -> None:
    rig = Rig(8)
    first, second = rig.begin(PAGE_TOKENS), rig.begin(PAGE_TOKENS)
    rig.pages.release(second)
    rig.pages.stop_publishing()
    assert first.cursor is None
    assert rig.begin(PAGE_TOKENS).cursor is not None


def test_a_cache_that_is_off_gives_a_match_no_pages() -> None:
    rig = Rig(8)
    rig.pages.release(rig.computed(PAGE_TOKENS))
    match = rig.prefixes.match(None, TOKENS[: PAGE_TOKENS + 1])
    rig.prefixes.enabled = False
    rig.pages.attach(table := PageTable(), match)
    assert (match.length, table.pages, table.cursor) == (PAGE_TOKENS, [], None)
