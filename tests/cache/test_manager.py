"""Page tables grow and are released; every page has exactly the owners it should."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heddle.cache.manager import CacheManager, PageTable, pages_for
from heddle.step import PAGE_TOKENS

PAGES = 6


@pytest.mark.parametrize(
    ("tokens", "pages"),
    [(0, 0), (1, 1), (PAGE_TOKENS, 1), (PAGE_TOKENS + 1, 2), (3 * PAGE_TOKENS, 3)],
)
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_a_page_table_without_room_is_left_as_it_was() -> None:
    manager = CacheManager(PAGES)
    first, second = PageTable(), PageTable()
    assert manager.grow(first, 4 * PAGE_TOKENS)
    assert manager.grow(second, PAGE_TOKENS)
    assert not manager.grow(second, 3 * PAGE_TOKENS)
    assert (second.pages, manager.free) == ([4], 1)


def test_integrity_finds_a_page_with_two_tables() -> None:
    manager = CacheManager(PAGES)
    first, second = PageTable(), PageTable()
    manager.grow(first, PAGE_TOKENS)
    manager.grow(second, PAGE_TOKENS)
    second.pages[0] = first.pages[0]
    with pytest.raises(AssertionError, match="page 0 counts 1 owners, 2 tables name it"):
        manager.check_integrity()


def test_integrity_finds_a_page_that_lost_its_table() -> None:
    manager = CacheManager(PAGES)
    table = PageTable()
    manager.grow(table, PAGE_TOKENS)
    table.pages.clear()
    with pytest.raises(AssertionError, match="page 0 counts 1 owners, 0 tables name it"):
        manager.check_integrity()


class Tables(RuleBasedStateMachine):
    """Random tables against a naive model: a set of free pages, its smallest first."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = CacheManager(PAGES)
        self.free = set(range(PAGES))
        self.tables = [PageTable() for _ in range(3)]
        self.expected: list[list[int]] = [[] for _ in self.tables]

    @rule(which=st.integers(0, 2), tokens=st.integers(0, PAGES * PAGE_TOKENS + 1))
    def grow(self, which: int, tokens: int) -> None:
        missing = max(0, -(-tokens // PAGE_TOKENS) - len(self.expected[which]))
        fits = missing <= len(self.free)
        assert self.manager.grow(self.tables[which], tokens) == fits
        for _ in range(missing if fits else 0):
            page = min(self.free)
            self.free.remove(page)
            self.expected[which].append(page)

    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        self.manager.release(self.tables[which])
        self.free.update(self.expected[which])
        self.expected[which] = []

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.manager.check_integrity()
        assert [table.pages for table in self.tables] == self.expected
        assert self.manager.free == len(self.free)


TestTables = Tables.TestCase
