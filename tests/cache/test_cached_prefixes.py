"""Prefixes are published, found, counted, saved and dropped."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.cache.cached_prefixes import CachedPrefixes
from heddle.cache.page_tables import PageTable
from heddle.cache.pools import Pools
from heddle.state import PAGE_TOKENS, StateMemory, TokenArray

TOKENS = list(range(1000))


class Saved:
    """Stands in for a disk tier: notes the ends of the pages that it saves."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def save(self, page: Any) -> None:
        self.ends.append(len(page.tokens))


class Rig:
    def __init__(self, *, enabled: bool = True, most_nodes: int = 0, disk: Any = None) -> None:
        self.pools = Pools(StateMemory(64))
        self.prefixes = CachedPrefixes(
            self.pools, enabled=enabled, most_nodes=most_nodes, disk=disk
        )

    def publish(self, tokens: list[int], salt: str | None = None) -> PageTable:
        """Publish tokens in pages of their own, and hold them."""
        prefixes = self.prefixes
        table = PageTable()
        table.cursor = prefixes.tree.enter(prefixes.match(salt, [], 0))
        table.pages = [self.pools.pages.take() for _ in range(-(-len(tokens) // PAGE_TOKENS))]
        prefixes.publish(table, tokens, len(tokens))
        return table

    def leave(self, table: PageTable) -> None:
        """Hold a table's nodes no more."""
        assert table.cursor is not None
        self.prefixes.tree.leave(table.cursor)

    def found(self, tokens: list[int], salt: str | None = None) -> int:
        return self.prefixes.match(salt, tokens, len(tokens)).length


def test_the_last_token_is_never_found_unless_the_caller_says() -> None:
    rig = Rig()
    rig.publish(TOKENS[:40])
    assert rig.prefixes.match(None, TOKENS[:40]).length == 39
    assert rig.prefixes.match(None, TOKENS[:40], 40).length == 40
    assert rig.prefixes.match(None, TOKENS[:40], 8).length == 8


def test_a_prefix_is_found_under_its_salt_only() -> None:
    rig = Rig()
    rig.publish(TOKENS[:40], "one")
    assert [rig.found(TOKENS[:40], salt) for salt in ("one", "two", None)] == [40, 0, 0]


def test_a_cache_that_is_off_finds_and_counts_nothing() -> None:
    rig = Rig()
    rig.publish(TOKENS[:40])
    rig.prefixes.enabled = False
    rig.prefixes.count_query(40, 39)
    assert (rig.found(TOKENS[:40]), rig.prefixes.hits, rig.prefixes.query_tokens) == (0, 0, 0)


def test_queries_are_counted_as_hits_or_misses() -> None:
    prefixes = Rig().prefixes
    prefixes.count_query(50, 0)
    prefixes.count_query(70, 40, 8)
    assert (prefixes.hits, prefixes.misses) == (1, 1)
    assert (prefixes.query_tokens, prefixes.hit_tokens, prefixes.lost_tokens) == (120, 40, 8)


def test_tokens_that_are_published_already_are_not_published_again() -> None:
    rig = Rig()
    table = rig.publish(TOKENS[:40])
    for computed in (40, 10):
        rig.prefixes.publish(table, TOKENS, computed)
        assert (rig.prefixes.tree.nodes, rig.prefixes.tree.tokens) == (1, 40)
    rig.prefixes.publish(PageTable(), TOKENS, 40)  # it has no cursor
    assert rig.prefixes.tree.tokens == 40


def test_a_table_takes_the_full_pages_of_the_tree() -> None:
    rig = Rig()
    first, second = rig.publish(TOKENS[:72]), rig.publish(TOKENS[:72])
    assert (first.pages, second.pages) == ([0, 1, 2], [0, 1, 5])
    assert [rig.pools.pages.is_held(page) for page in range(6)] == [True] * 3 + [False] * 2 + [True]


def test_unpublished_tokens_are_gone_up_to_what_others_continue() -> None:
    rig = Rig()
    rig.publish(TOKENS[:40])
    bad = rig.publish(TOKENS[:40] + [7] * 40)
    rig.prefixes.unpublish(bad)
    assert (bad.cursor, rig.found(TOKENS[:40] + [7] * 40)) == (None, 40)
    rig.prefixes.unpublish(bad)  # it has none


def test_only_the_end_of_a_prefix_that_nobody_holds_is_erased() -> None:
    rig, both = Rig(), [TOKENS[:40] + [number] * 40 for number in (7, 8)]
    held, free = map(rig.publish, both)
    rig.leave(free)
    for tokens in (both[0], TOKENS[:40], both[1][:60], [9]):
        assert rig.prefixes.erase(None, tokens) == 0
    assert rig.prefixes.erase(None, both[1]) == 40
    assert [rig.found(tokens) for tokens in both] == [80, 40]
    rig.leave(held)
    assert rig.prefixes.erase(None, both[0]) == 80


def test_the_node_that_was_used_least_recently_is_evicted_and_counted() -> None:
    rig = Rig()
    for number in (7, 8):
        rig.prefixes.tick()
        rig.leave(rig.publish([number] * 40))
    assert rig.prefixes.evict()
    assert [rig.found([number] * 40) for number in (7, 8)] == [0, 40]
    assert rig.prefixes.evict()
    assert not rig.prefixes.evict()
    assert rig.prefixes.evictions == 2


def test_there_are_at_most_as_many_nodes_as_the_settings_say() -> None:
    rig = Rig(most_nodes=2)
    tables = [rig.publish([number] * 8) for number in range(3)]
    assert rig.prefixes.tree.nodes == 3, "sequences hold all of them"
    for table in tables:
        rig.leave(table)
    rig.prefixes.keep_node_limit()
    assert (rig.prefixes.tree.nodes, rig.prefixes.evictions) == (2, 1)


@pytest.mark.parametrize("enabled", [True, False])
def test_an_evicted_node_is_saved_by_its_full_pages_the_last_first(enabled: bool) -> None:
    disk = Saved()
    rig = Rig(disk=disk)
    rig.leave(rig.publish(TOKENS[:72]))
    rig.prefixes.enabled = enabled
    assert (rig.prefixes.saves, Rig().prefixes.saves) == (True, False)
    rig.prefixes.evict()
    assert disk.ends == ([64, 32] if enabled else [])


def test_full_pages_name_their_prefix_and_are_warm_in_the_order_of_use() -> None:
    rig = Rig()
    for tokens in (TOKENS[:72], [7] * 40):
        rig.prefixes.tick()
        rig.leave(rig.publish(tokens, "salt"))
    pages = [(page.salt, page.tokens, page.page) for page in rig.prefixes.warm_pages()]
    assert pages == [
        ("salt", TokenArray("i", [7] * 32), 3),
        ("salt", TokenArray("i", TOKENS[:32]), 0),
        ("salt", TokenArray("i", TOKENS[:64]), 1),
    ]
