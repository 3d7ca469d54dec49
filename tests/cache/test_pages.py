"""The pool of page ids."""

import pytest

from heddle.cache.pages import PagePool


def test_the_lowest_free_page_goes_first() -> None:
    pool = PagePool(4)
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    for page in (3, 0, 2):
        pool.drop(page)
    assert [pool.take() for _ in range(3)] == [0, 2, 3]


def test_a_page_is_free_when_its_last_owner_drops_it() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.share(page)
    pool.drop(page)
    assert (pool.owners(page), pool.free) == (1, 1)
    pool.drop(page)
    assert (pool.owners(page), pool.free) == (0, 2)
    pool.check_integrity()


def test_a_free_page_can_be_neither_shared_nor_dropped() -> None:
    pool = PagePool(1)
    with pytest.raises(ValueError, match="page 0 is free"):
        pool.share(0)
    with pytest.raises(ValueError, match="page 0 is free"):
        pool.drop(0)


def test_an_empty_pool_says_so() -> None:
    pool = PagePool(1)
    pool.take()
    with pytest.raises(IndexError):
        pool.take()


def test_integrity_finds_a_page_freed_behind_the_count() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool._free.append(page)
    with pytest.raises(AssertionError, match="differ"):
        pool.check_integrity()
    pool.drop(page)
    with pytest.raises(AssertionError, match="twice"):
        pool.check_integrity()
