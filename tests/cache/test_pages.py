"""The pool of page ids."""

import pytest

from cache_integrity import check_pool
from heddle.cache.pages import NO_TICKET, PagePool, RevocablePool


def test_the_lowest_free_page_is_taken_first() -> None:
    pool = PagePool(4)
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    for page in (3, 0, 2):
        pool.let_go(page)
    assert [pool.take() for _ in range(3)] == [0, 2, 3]


def test_a_page_is_free_once_its_last_owner_releases_it() -> None:
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
    check_pool(pool, {page: 1}, {})
    pool.let_go(page)
    assert (pool.free, pool.held, pool.kept) == (2, 0, 0)
    check_pool(pool, {}, {})


def test_a_free_page_cannot_be_shared_or_released() -> None:
    pool = PagePool(1)
    for share in (pool.hold, pool.keep):
        with pytest.raises(ValueError, match="page 0 is free and cannot be shared"):
            share(0)
    with pytest.raises(ValueError, match="page 0 has no holder"):
        pool.let_go(0)
    with pytest.raises(ValueError, match="page 0 has no keeper"):
        pool.forget(0)


def test_keeping_a_page_gives_no_right_to_release_a_hold() -> None:
    pool = PagePool(1)
    page = pool.take()
    pool.keep(page)
    pool.let_go(page)
    with pytest.raises(ValueError, match="has no holder"):
        pool.let_go(page)


def test_an_empty_pool_raises_index_error() -> None:
    pool = PagePool(1)
    pool.take()
    with pytest.raises(IndexError):
        pool.take()


def test_integrity_finds_a_page_freed_without_the_count() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool._free.append(page)
    with pytest.raises(AssertionError, match="differ"):
        check_pool(pool, {page: 1}, {})
    pool.let_go(page)
    with pytest.raises(AssertionError, match="twice"):
        check_pool(pool, {}, {})


def test_integrity_finds_a_wrong_total() -> None:
    pool = PagePool(2)
    pool.held += 1
    with pytest.raises(AssertionError, match="held is 1, but 0 pages are held"):
        check_pool(pool, {}, {})


def kept(pool: RevocablePool) -> tuple[int, int]:
    """A page that one node keeps and no sequence holds: the page and its ticket."""
    page = pool.take()
    ticket = pool.keep_for_node(page)
    pool.let_go(page)
    return page, ticket


def test_the_longest_idle_page_is_revoked_when_no_page_is_free() -> None:
    pool = RevocablePool(2)
    (first, old), (second, ticket) = kept(pool), kept(pool)
    pool.hold(first)
    pool.let_go(first)  # used again, so the other page has been idle longer
    assert pool.take() == second
    assert (pool.page(ticket), pool.page(old)) == (None, first)
    assert pool.take() == first
    assert (pool.held, pool.kept, pool.available) == (2, 0, 0)
    check_pool(pool, {first: 1, second: 1}, {})


def test_a_stale_ticket_stays_stale_and_can_be_forgotten() -> None:
    pool = RevocablePool(1)
    page, stale = kept(pool)
    assert pool.revoke()
    assert not pool.revoke()
    page, ticket = kept(pool)
    assert ticket != stale
    pool.forget_ticket(stale)
    pool.keep_again(stale)
    assert (pool.page(stale), pool.page(ticket), pool.kept) == (None, page, 1)
    pool.forget_ticket(ticket)
    assert pool.free == 1


def test_a_held_page_is_never_revoked() -> None:
    pool = RevocablePool(1)
    page = pool.take()
    ticket = pool.keep_for_node(page)
    assert not pool.revoke()
    assert (pool.page(ticket), pool.is_held_once(page)) == (page, True)
    with pytest.raises(IndexError):
        pool.take()


def test_an_empty_pool_has_no_valid_ticket() -> None:
    assert RevocablePool(0).page(NO_TICKET) is None
    assert RevocablePool(3).page(NO_TICKET) is None
