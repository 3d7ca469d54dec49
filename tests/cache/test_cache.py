"""Page tables grow and are released; every page has exactly its right owners."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache_integrity import check_cache
from heddle.cache.cache import Cache
from heddle.cache.page_tables import PageTable
from heddle.cache.windows import WindowGroup
from heddle.state import PAGE_TOKENS, StateMemory, WindowMemory, pages_for
from heddle.step import WindowPages

PAGES = 6


@pytest.mark.parametrize(
    ("tokens", "pages"),
    [(0, 0), (1, 1), (PAGE_TOKENS, 1), (PAGE_TOKENS + 1, 2), (3 * PAGE_TOKENS, 3)],
)
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_a_page_table_that_cannot_grow_is_unchanged() -> None:
    cache = Cache(StateMemory(PAGES))
    first, second = PageTable(), PageTable()
    assert cache.pages.grow(first, 4 * PAGE_TOKENS)
    assert cache.pages.grow(second, PAGE_TOKENS)
    assert not cache.pages.grow(second, 3 * PAGE_TOKENS)
    assert (second.pages, cache.pages.available) == ([4], 1)


def test_integrity_finds_a_page_with_two_tables() -> None:
    cache = Cache(StateMemory(PAGES))
    first, second = PageTable(), PageTable()
    cache.pages.grow(first, PAGE_TOKENS)
    cache.pages.grow(second, PAGE_TOKENS)
    second.pages[0] = first.pages[0]
    with pytest.raises(AssertionError, match="page 0 counts 1 holders, but has 2"):
        check_cache(cache)


def test_integrity_finds_a_page_that_lost_its_table() -> None:
    cache = Cache(StateMemory(PAGES))
    table = PageTable()
    cache.pages.grow(table, PAGE_TOKENS)
    table.pages.clear()
    with pytest.raises(AssertionError, match="page 0 counts 1 holders, but has 0"):
        check_cache(cache)


class Sequence:
    """A page table and its tokens."""

    def __init__(self, cache: Cache, tokens: list[int], salt: str | None = None) -> None:
        self.cache, self.tokens, self.salt = cache, tokens, salt
        self.table = PageTable()
        cache.prefixes.tick()
        match = cache.prefixes.match(salt, [*tokens, 0])
        self.before = cache.pages.available
        self.cost, *_ = cache.pages.cost(match, len(tokens)).pages
        cache.pages.attach(self.table, match)
        self.found = match.length

    def compute(self, tokens: int | None = None) -> None:
        assert self.cache.pages.grow(self.table, len(self.tokens) if tokens is None else tokens)
        self.cache.pages.copied(self.table)
        self.cache.prefixes.publish(
            self.table, self.tokens, len(self.tokens) if tokens is None else tokens
        )
        check_cache(self.cache)

    def end(self) -> None:
        self.cache.pages.release(self.table)
        check_cache(self.cache)


def words(*numbers: int) -> list[int]:
    """Forty different tokens for each number."""
    return [number * 100 + i for number in numbers for i in range(40)]


def test_whole_pages_are_shared_and_the_last_one_is_copied() -> None:
    cache = Cache(StateMemory(PAGES))
    first = Sequence(cache, words(1, 2))
    first.compute()
    second = Sequence(cache, words(1, 3))
    assert (second.found, second.table.pages, second.table.source) == (40, [0], 1)
    second.compute()
    assert (second.table.pages, second.table.source) == ([0, 3, 4], None)
    assert cache.pages.available == 1


def test_an_attached_sequence_takes_the_pages_of_its_computed_cost() -> None:
    cache = Cache(StateMemory(20))
    first = Sequence(cache, words(1, 2))
    first.compute()
    first.end()
    second = Sequence(cache, words(1, 3, 4))
    second.compute()
    # The copy released the source page.
    assert second.before - cache.pages.available == second.cost - 1
    third = Sequence(cache, words(1, 2, 5))
    third.compute()
    assert third.before - cache.pages.available == third.cost - 1


def test_a_sequence_that_computes_cached_tokens_adopts_the_pages_of_the_tree() -> None:
    cache = Cache(StateMemory(20))
    first, second = (Sequence(cache, words(1, 2)) for _ in range(2))
    first.compute()
    second.compute()
    assert second.table.pages[:2] == first.table.pages[:2]
    assert second.table.pages[2] != first.table.pages[2], "both go on writing there"
    assert (cache.stats().nodes, cache.stats().cached_tokens) == (1, 80)


def test_growing_evicts_only_unheld_pages_and_no_more_than_needed() -> None:
    cache = Cache(StateMemory(PAGES))
    for number in (1, 2):
        sequence = Sequence(cache, words(number))
        sequence.compute()
        sequence.end()
    assert (cache.pages.available, cache._pools.pages.free) == (6, 2)
    table = PageTable()
    assert cache.pages.grow(table, 4 * PAGE_TOKENS)
    assert len(cache.prefixes.match(None, words(1)).path) == 1
    assert cache.prefixes.match(None, words(2)).length == 39
    assert cache.stats().evictions == 1
    assert cache.pages.grow(table, 6 * PAGE_TOKENS)
    assert not cache.pages.grow(table, 7 * PAGE_TOKENS)
    check_cache(cache)


def test_a_boundary_page_that_only_a_lock_keeps_is_available() -> None:
    """Two sequences continue from the middle of a page; the one whose copy the node names ends."""
    cache = Cache(StateMemory(PAGES))
    first, second = Sequence(cache, words(1, 2)), Sequence(cache, words(1, 3))
    first.compute()  # 3 pages
    second.compute()  # 3 pages, shares none
    shared = second.table.pages[0]
    assert shared == first.table.pages[0]
    second.end()
    assert cache.pages.available == 3
    table = PageTable()
    assert cache.pages.grow(table, 3 * PAGE_TOKENS)
    check_cache(cache)
    assert cache.prefixes.match(None, words(1, 2)).length == 79


def test_a_node_limit_evicts_leaves() -> None:
    cache = Cache(StateMemory(50), most_nodes=3)
    for number in range(2, 8):
        sequence = Sequence(cache, words(1, number))
        sequence.compute()
        sequence.end()
        assert cache.stats().nodes <= 3
    assert [cache.prefixes.match(None, words(1, n)).length for n in (5, 6, 7)] == [40, 79, 79]


def test_after_a_flush_tables_keep_their_pages_and_publish_nothing() -> None:
    cache = Cache(StateMemory(PAGES))
    running = Sequence(cache, words(1, 2))
    running.compute(50)
    cache.flush()
    running.compute()
    assert (cache.stats().nodes, cache.pages.available) == (0, 3)
    later = Sequence(cache, words(1))
    assert later.found == 0
    later.compute()
    assert cache.stats().nodes == 1


def test_a_flush_drops_the_pages_on_disk_too() -> None:
    flushes = []
    disk: Any = SimpleNamespace(flush=lambda: flushes.append("disk"))
    Cache(StateMemory(PAGES), disk=disk).flush()
    assert flushes == ["disk"]


def test_a_restore_without_its_snapshot_restores_nothing_of_a_recurrent_model() -> None:
    table = PageTable()
    whole: Any = SimpleNamespace(is_complete=True)
    part: Any = SimpleNamespace(is_complete=False)
    plain = Cache(StateMemory(PAGES))
    recurrent = Cache(StateMemory(PAGES, snapshots=2, snapshot_bytes=1, snapshot_tokens=64))
    plain.pages.grow(table, 3 * PAGE_TOKENS)
    assert [recurrent.disk.restored(table, one, PAGE_TOKENS) for one in (whole, part)] == [96, 32]
    assert plain.disk.restored(table, part, PAGE_TOKENS) == 96


def test_the_last_page_of_a_released_window_is_revoked_first() -> None:
    group = WindowGroup(WindowMemory(64, 3), 0)
    pages = [group.pool.take() for _ in range(3)]
    tickets = [group.pool.keep_for_node(page) for page in pages]
    group.release(WindowPages(0, [*pages]))
    for kept in (2, 1, 0):
        group.pool.take()
        assert [group.pool.page(ticket) for ticket in tickets[:kept]] == pages[:kept]
        assert group.pool.page(tickets[kept]) is None


def test_a_disabled_cache_finds_and_keeps_nothing() -> None:
    cache = Cache(StateMemory(PAGES))
    Sequence(cache, words(1)).compute()
    cache.set_enabled(False)
    off = Sequence(cache, words(1))
    off.compute()
    assert (off.found, cache.stats().nodes, cache.stats().enabled) == (0, 0, False)
    cache.set_enabled(True)
    off.compute()
    assert cache.stats().nodes == 0
    Sequence(cache, words(2)).compute()
    assert Sequence(cache, words(2)).found == 40


def test_unpublish_removes_the_nodes_that_no_other_sequence_uses() -> None:
    cache = Cache(StateMemory(20))
    first, bad = Sequence(cache, words(1, 2)), Sequence(cache, words(1, 3))
    first.compute()
    bad.compute()
    cache.prefixes.unpublish(bad.table)
    bad.compute()
    assert [cache.prefixes.match(None, words(1, n)).length for n in (2, 3)] == [79, 40]
    bad.end()


def test_statistics() -> None:
    cache = Cache(StateMemory(PAGES, page_bytes=1000))
    cache.prefixes.count_query(50, 0)
    cache.prefixes.count_query(70, 40)
    Sequence(cache, words(1)).compute()
    stats = cache.stats()
    assert (stats.hits, stats.misses) == (1, 1)
    assert (stats.query_tokens, stats.hit_tokens) == (120, 40)
    assert (stats.nodes, stats.cached_tokens) == (1, 40)
    assert (stats.cached_bytes, stats.capacity_bytes) == (2000, 6000)


class Tables(RuleBasedStateMachine):
    """Random tables against a naive model: a set of free pages, taken smallest first."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(StateMemory(PAGES))
        self.free = set(range(PAGES))
        self.tables = [PageTable() for _ in range(3)]
        self.expected: list[list[int]] = [[] for _ in self.tables]

    @rule(which=st.integers(0, 2), tokens=st.integers(0, PAGES * PAGE_TOKENS + 1))
    def grow(self, which: int, tokens: int) -> None:
        missing = max(0, -(-tokens // PAGE_TOKENS) - len(self.expected[which]))
        fits = missing <= len(self.free)
        assert self.cache.pages.grow(self.tables[which], tokens) == fits
        for _ in range(missing if fits else 0):
            page = min(self.free)
            self.free.remove(page)
            self.expected[which].append(page)

    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        self.cache.pages.release(self.tables[which])
        self.free.update(self.expected[which])
        self.expected[which] = []

    @invariant()
    def agrees_with_the_model(self) -> None:
        check_cache(self.cache)
        assert [table.pages for table in self.tables] == self.expected
        assert self.cache.pages.available == len(self.free)


TestTables = Tables.TestCase


def test_warm_pages_start_with_the_most_recently_used_prefix() -> None:
    cache = Cache(StateMemory(40))
    for text in (words(1, 2, 3, 4, 5), words(6, 7)):
        sequence = Sequence(cache, text)
        sequence.compute()
        sequence.end()
    warm = [list(page.tokens) for page in cache.prefixes.warm_pages()]
    long, short = words(1, 2, 3, 4, 5), words(6, 7)
    assert warm == [
        text[:end]
        for text in (short, long)
        for end in range(PAGE_TOKENS, len(text) + 1, PAGE_TOKENS)
    ]


def with_snapshots(ends: list[int]) -> tuple[Cache, list[int]]:
    """A cache with one prefix, and snapshots of its state at these numbers of tokens."""
    memory = StateMemory(8, 1000, snapshots=8, snapshot_bytes=70, snapshot_tokens=64)
    cache, tokens = Cache(memory), words(1, 2, 3)[: ends[-1]]
    sequence = Sequence(cache, tokens)
    for end in ends:
        assert cache.pages.grow(sequence.table, end)
        cache.pages.begin_snapshot(sequence.table)
        cache.pages.end_snapshot(sequence.table, tokens, end)
    sequence.end()
    return cache, tokens


def test_a_prefix_of_whole_pages_ends_at_a_snapshot_at_the_end_of_a_page() -> None:
    cache, tokens = with_snapshots([32, 40])
    match = cache.prefixes.match(None, tokens, len(tokens))
    assert match.length == 40
    assert cache.prefixes.whole_pages(match).length == 32
    cache, tokens = with_snapshots([20, 40])
    match = cache.prefixes.match(None, tokens, len(tokens))
    assert cache.prefixes.whole_pages(match).length == 0


def test_tokens_that_are_found_and_computed_again_are_lost() -> None:
    cache, tokens = with_snapshots([32, 40, 60])
    match = cache.prefixes.match(None, tokens)
    assert (match.length, match.lost) == (40, 59 - 40)
    match = cache.prefixes.whole_pages(match)
    assert (match.length, match.lost) == (32, 59 - 32)
    cache.pages.attach(table := PageTable(), match)
    assert table.lost == 59 - 32


def test_only_the_last_page_of_a_node_is_saved_with_its_snapshot() -> None:
    cache, _ = with_snapshots([96])
    warm = [(len(page.tokens), page.snapshot) for page in cache.prefixes.warm_pages()]
    assert warm == [(32, None), (64, None), (96, 0)]


def test_cached_bytes_are_those_of_pages_windows_and_snapshots() -> None:
    cache, _ = with_snapshots([32, 40])
    assert cache.stats().cached_bytes == 2 * 1000 + 2 * 70
    windowed = Cache(StateMemory(8, 1000, (WindowMemory(200, 8, page_bytes=300),)))
    sequence = Sequence(windowed, words(1))
    sequence.compute()
    sequence.end()
    assert windowed.stats().cached_bytes == 2 * 1000 + 2 * 300


def test_the_figures_of_hits() -> None:
    cache = Cache(StateMemory(PAGES))
    assert (cache.stats().hit_rate, cache.stats().mean_hit_tokens) == (0.0, 0.0)
    for found, lost in ((0, 0), (40, 3), (20, 4), (0, 0)):
        cache.prefixes.count_query(70, found, lost)
    stats = cache.stats()
    assert (stats.hit_rate, stats.mean_hit_tokens, stats.lost_tokens) == (0.5, 30.0, 7)


def test_a_table_that_shrinks_gives_back_pages_of_all_groups() -> None:
    cache = Cache(StateMemory(8, windows=(WindowMemory(200, 8),)))
    table = PageTable()
    cache.pages.grow(table, 5 * PAGE_TOKENS)
    cache.pages.shrink(table, 3 * PAGE_TOKENS + 1)
    check_cache(cache)
    assert (len(table.pages), len(table.windows[0].pages)) == (4, 4)
    assert cache.pages.available_by_group.pages == (4, 4)


def test_a_windowed_page_that_one_sequence_holds_costs_one() -> None:
    """When that sequence advances, it cannot use the page again. The source of a copy counts."""
    cache = Cache(StateMemory(8, windows=(WindowMemory(64, 8, reach=3),)))
    tokens = words(1, 2)  # ends inside the third page
    first = Sequence(cache, tokens)
    first.compute()
    match = cache.prefixes.match(None, [*tokens, 0])
    assert cache.pages.cost(match, len(tokens) + PAGE_TOKENS).pages == (2, 2 + 3)
    first.end()
    assert cache.pages.cost(match, len(tokens) + PAGE_TOKENS).pages == (2 + 3, 3 + 1)
