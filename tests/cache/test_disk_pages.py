"""Pages of prefixes are found in files, loaded into page tables, and copied to files."""

from __future__ import annotations

from typing import Any

import pytest

from cache_integrity import check_cache
from heddle.cache.cache import Cache
from heddle.cache.page_tables import PageTable
from heddle.disk.page_file import Prefix
from heddle.disk.tier import Restore
from heddle.state import PAGE_TOKENS, StateMemory, TokenArray, WindowMemory

TOKENS = list(range(1000))
SNAPSHOTS: Any = {"snapshot_bytes": 1, "snapshot_tokens": PAGE_TOKENS}


class Tier:
    """Stands in for a disk tier: it has one prefix, and notes what it is asked for."""

    def __init__(self, pages: int = 4, *, snapshot: bool = False) -> None:
        prefix = Prefix(b"", b"", TokenArray("i", TOKENS[: pages * PAGE_TOKENS]))
        names = [f"file {number}" for number in range(pages + snapshot)]
        self.restore = Restore(self, prefix, names, 0, 0)  # type: ignore[arg-type]
        self.has_it = True
        self.asked: list[tuple[int, int]] = []
        self.did: list[Any] = []

    def find(self, salt: str | None, tokens: TokenArray[int], first: int) -> Restore | None:
        self.asked.append((len(tokens), first))
        return self.restore if self.has_it else None

    def read(self, pages: int) -> Restore:
        """Let so many more pages have been read."""
        self.restore.ready.extend(memoryview(b"") for _ in range(pages))
        return self.restore

    def begin(self, restore: Restore) -> None:
        self.did.append("begin")

    def check(self, restore: Restore) -> None:
        self.did.append("check")

    def cancel(self, restore: Restore) -> None:
        self.did.append("cancel")

    def flush(self) -> None:
        self.did.append("flush")

    def load(self, restore: Restore, page: int, windows: list[int]) -> None:
        self.did.append((page, *windows))
        self._loaded(restore)

    def load_snapshot(self, restore: Restore, snapshot: int) -> None:
        self.did.append(f"snapshot {snapshot}")
        self._loaded(restore)

    def save(self, page: Any) -> None:
        self.did.append((len(page.tokens), page.snapshot))

    def _loaded(self, restore: Restore) -> None:
        restore.ready.popleft()
        restore.loaded += 1


def cache_with(tier: Tier | None, pages: int = 8, **memory: Any) -> Cache:
    return Cache(StateMemory(pages, **memory), disk=tier)  # type: ignore[arg-type]


def begun(cache: Cache) -> PageTable:
    table = PageTable()
    cache.pages.attach(table, cache.prefixes.match(None, TOKENS))
    return table


def test_full_pages_after_a_match_are_looked_for() -> None:
    tier = Tier()
    cache = cache_with(tier)
    match = cache.prefixes.match(None, TOKENS)
    assert cache.disk.find(match, TOKENS[: 2 * PAGE_TOKENS + 1]) is tier.restore
    assert cache.disk.find(match, TOKENS[: 2 * PAGE_TOKENS], 2 * PAGE_TOKENS) is tier.restore
    assert tier.asked == [(64, 0), (64, 0)]
    assert cache.disk.find(match, TOKENS[:PAGE_TOKENS]) is None, "its last token is computed"
    cache.prefixes.enabled = False
    assert cache.disk.find(match, TOKENS) is None
    assert len(tier.asked) == 2


def test_tiers_are_asked_in_turn_while_they_are_lent() -> None:
    first, lent = Tier(), Tier()
    cache = cache_with(first)
    first.has_it = False
    match = cache.prefixes.match(None, TOKENS)
    assert cache.disk.find(match, TOKENS) is None
    cache.disk.lend(lent)  # type: ignore[arg-type]
    assert cache.disk.find(match, TOKENS) is lent.restore
    first.has_it = True
    assert cache.disk.find(match, TOKENS) is first.restore
    cache.disk.flush()
    assert (first.did, lent.did) == (["flush"], ["flush"])
    first.has_it = False
    cache.disk.take_back(lent)  # type: ignore[arg-type]
    assert cache.disk.find(match, TOKENS) is None
    assert cache_with(None).disk.find(match, TOKENS) is None


def test_its_own_tier_begins_and_cancels_a_restore() -> None:
    tier, other = Tier(), Tier()
    cache = cache_with(other)
    cache.disk.begin(tier.restore)
    cache.disk.cancel(tier.restore)
    assert (tier.did, other.did) == (["begin", "cancel"], [])


def test_pages_that_were_read_are_loaded_up_to_the_most() -> None:
    tier = Tier()
    cache, table = cache_with(tier), PageTable()
    restore = tier.read(3)
    assert cache.disk.load(table, restore, 2) == 2
    assert cache.disk.load(table, restore, 2) == 1
    assert cache.disk.load(table, restore, 2) == 0
    assert tier.did == ["check", (0,), (1,), "check", (2,), "check"]
    assert cache.disk.restored(table, restore, 0) == 3 * PAGE_TOKENS


def test_loading_ends_when_no_page_is_free() -> None:
    tier = Tier()
    cache, table = cache_with(tier, pages=3), PageTable()
    assert cache.pages.grow(PageTable(), PAGE_TOKENS)
    assert cache.disk.load(table, tier.read(4), 4) == 2
    assert (table.pages, len(tier.restore.ready)) == ([1, 2], 2)


def test_windowed_pages_that_no_later_token_sees_are_given_back_at_once() -> None:
    tier = Tier()
    cache = cache_with(tier, windows=(WindowMemory(PAGE_TOKENS, 3),))
    table = begun(cache)
    assert cache.disk.load(table, tier.read(4), 4) == 4
    assert tier.did == ["check", (0, 0), (1, 1), (2, 2), (3, 0)]
    [window] = table.windows
    assert (window.first, window.pages) == (3, [0])


def test_a_restore_ends_with_the_snapshot_from_which_the_table_continues() -> None:
    tier = Tier(pages=1, snapshot=True)
    cache = cache_with(tier, snapshots=2, **SNAPSHOTS)
    table, restore = begun(cache), tier.read(2)
    assert cache.disk.load(table, restore, 1) == 1
    assert cache.disk.restored(table, restore, 0) == 0, "the snapshot is not there yet"
    assert cache.disk.load(table, restore, 1) == 0
    assert tier.did == ["check", (0,), "check", "snapshot 0"]
    assert (table.state, table.snapshot) == (0, None)
    assert cache.disk.restored(table, restore, 0) == PAGE_TOKENS
    assert cache.prefixes.match(None, TOKENS).length == PAGE_TOKENS, "others find it"
    check_cache(cache)
    cache.pages.copied(table)
    assert table.state is None


def test_a_restore_whose_snapshot_finds_no_room_is_cancelled() -> None:
    tier = Tier(pages=1, snapshot=True)
    cache = cache_with(tier, snapshots=1, **SNAPSHOTS)
    assert cache.pages.begin_snapshot(begun(cache)) == 0
    table, restore = begun(cache), tier.read(2)
    assert cache.disk.load(table, restore, 2) == 1
    assert tier.did == ["check", (0,), "cancel"]
    assert (table.state, list(restore.ready)) == (None, [])


def test_pages_without_a_gap_are_copied_at_most_as_many_as_asked() -> None:
    cache, tier = cache_with(None), Tier()
    table, run = begun(cache), TokenArray("i", TOKENS[: 4 * PAGE_TOKENS])
    cache.pages.grow(table, len(run))
    cache.prefixes.publish(table, TOKENS, 3 * PAGE_TOKENS)
    copied: Any = cache.disk.copy
    assert copied(tier, None, run, 0, 2) == 2
    assert copied(tier, None, run, 2, 2) == 1, "the fourth page is not published"
    assert copied(tier, "salt", run, 0, 2) == 0
    assert tier.did == [(32, None), (64, None), (96, None)]


@pytest.mark.parametrize(("pages", "snapshots"), [(2, [None, 1]), (1, [None])])
def test_only_the_last_page_is_copied_with_its_snapshot(
    pages: int, snapshots: list[int | None]
) -> None:
    cache, tier = cache_with(None, snapshots=2, **SNAPSHOTS), Tier()
    table = begun(cache)
    for end in (PAGE_TOKENS // 2, 2 * PAGE_TOKENS):
        cache.pages.grow(table, end)
        cache.pages.begin_snapshot(table)
        cache.pages.end_snapshot(table, TOKENS, end)
    run: Any = TokenArray("i", TOKENS[: 2 * PAGE_TOKENS])
    assert cache.disk.copy(tier, None, run, 0, pages) == pages  # type: ignore[arg-type]
    assert tier.did == [(32 * (i + 1), one) for i, one in enumerate(snapshots)]
    tier.did.clear()
    longer: Any = TokenArray("i", TOKENS[: 3 * PAGE_TOKENS])
    assert cache.disk.copy(tier, None, longer, 0, pages) == pages  # type: ignore[arg-type]
    assert [snapshot for _, snapshot in tier.did] == [None] * pages
