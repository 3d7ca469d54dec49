"""The pool of page ids."""

import pytest

from heddle.cache.pages import PagePool


def test_the_lowest_free_page_goes_first() -> None:
    pool = PagePool(4)
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    for page in (3, 0, 2):
        pool.let_go(page)
    assert [pool.take() for _ in range(3)] == [0, 2, 3]


def test_a_page_is_free_when_its_last_owner_goes() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.hold(page)
    pool.keep(page)
    assert (pool.free, pool.held, pool.kept) == (1, 1, 1)
    pool.let_go(page)
    pool.let_go(page)
    assert (pool.free, pool.held, pool.kept) == (1, 0, 1)
    pool.keep(page)
    pool.hold(page)
    pool.forget(page)
    pool.forget(page)
    assert (pool.free, pool.held, pool.kept) == (1, 1, 0)
    pool.check_integrity({page: 1}, {})
    pool.let_go(page)
    assert (pool.free, pool.held, pool.kept) == (2, 0, 0)
    pool.check_integrity({}, {})


def test_a_free_page_can_neither_be_shared_nor_given_back() -> None:
    pool = PagePool(1)
    for share in (pool.hold, pool.keep):
        with pytest.raises(ValueError, match="page 0 is free and cannot be shared"):
            share(0)
    with pytest.raises(ValueError, match="page 0 is held by no one"):
        pool.let_go(0)
    with pytest.raises(ValueError, match="page 0 is kept by no one"):
        pool.forget(0)


def test_who_keeps_a_page_cannot_let_it_go() -> None:
    pool = PagePool(1)
    page = pool.take()
    pool.keep(page)
    pool.let_go(page)
    with pytest.raises(ValueError, match="held by no one"):
        pool.let_go(page)


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
        pool.check_integrity({page: 1}, {})
    pool.let_go(page)
    with pytest.raises(AssertionError, match="twice"):
        pool.check_integrity({}, {})


def test_integrity_finds_a_wrong_total() -> None:
    pool = PagePool(2)
    pool.held += 1
    with pytest.raises(AssertionError, match="1 pages are not held"):
        pool.check_integrity({}, {})
