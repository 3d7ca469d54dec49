"""Observers hear of every block that the tree gains or loses, and of nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extensions.kv_events.block_mirror import Mirror, blocks_of
from heddle.cache.cache import Cache
from heddle.cache.page_tables import PageTable
from heddle.extensions.kv_events.blocks import Blocks, block_hashes, observe
from heddle.state import FIRST_KEY, PAGE_TOKENS, StateMemory

PAGES = 24
SALTS = (None, "a", "b")


def page(*letters: int) -> list[int]:
    """A page of tokens for each letter."""
    return [letter * 100 + at for letter in letters for at in range(PAGE_TOKENS)]


class Sequence:
    """A sequence that computes its tokens piece by piece."""

    def __init__(self, cache: Cache, tokens: list[int], salt: str | None = None) -> None:
        self.cache, self.tokens, self.table = cache, tokens, PageTable()
        match = cache.prefixes.match(salt, [*tokens, 0])
        self.fits = cache.pages.cost(match, len(tokens)).pages[0] <= cache.pages.available
        self.computed = match.length
        if self.fits:
            cache.pages.attach(self.table, match)

    def compute(self, tokens: int | None = None) -> None:
        most = len(self.tokens) - self.computed
        self.computed += most if tokens is None else min(tokens, most)
        if self.cache.pages.grow(self.table, self.computed):
            self.cache.pages.copied(self.table)
            self.cache.prefixes.publish(self.table, self.tokens, self.computed)

    def end(self) -> None:
        self.cache.pages.release(self.table)


def run(cache: Cache, tokens: list[int], salt: str | None = None) -> None:
    sequence = Sequence(cache, tokens, salt)
    sequence.compute()
    sequence.end()


class BlocksMachine(RuleBasedStateMachine):
    """Random traffic of a small cache, and two observers: one from the start, one that joins."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(StateMemory(PAGES), most_nodes=9)
        self.mirrors = [Mirror()]
        observe(self.cache, self.mirrors[0])
        self.running: list[Sequence] = []

    @rule(
        letters=st.lists(st.integers(1, 2), min_size=1, max_size=4),
        end=st.integers(0, 40),
        salt=st.sampled_from(SALTS),
        picture=st.sampled_from([None, None, 10, 50]),
    )
    def begin(self, letters: list[int], end: int, salt: str | None, picture: int | None) -> None:
        tokens = [*page(*letters), *page(3, 4)[:end]]
        if picture is not None:
            tokens[picture : picture + 40] = [FIRST_KEY + 1] * 40
        sequence = Sequence(self.cache, tokens, salt)
        if sequence.fits:
            self.running.append(sequence)

    @precondition(lambda self: self.running)
    @rule(tokens=st.integers(1, 70), data=st.data())
    def compute(self, tokens: int, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.running)).compute(tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        sequence = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if fails:
            self.cache.prefixes.unpublish(sequence.table)
        sequence.end()

    @rule()
    def evict(self) -> None:
        self.cache.prefixes.evict()

    @precondition(lambda self: len(self.mirrors) < 3)
    @rule()
    def join(self) -> None:
        self.mirrors.append(Mirror())
        observe(self.cache, self.mirrors[-1])

    @rule()
    def flush(self) -> None:
        self.cache.flush()

    @invariant()
    def mirrors_agree(self) -> None:
        expected = blocks_of(self.cache.prefixes.tree)
        for mirror in self.mirrors:
            assert mirror.prefixes == expected


TestBlocks = BlocksMachine.TestCase


def test_blocks_end_before_the_first_picture() -> None:
    """Its key means another picture, or none, on another machine."""
    cache, mirror = Cache(StateMemory(PAGES)), Mirror()
    observe(cache, mirror)
    run(cache, [*page(1), *[FIRST_KEY] * 40, *page(2, 3)])
    assert list(mirror.prefixes) == block_hashes(None, page(1))
    run(cache, [*page(1), *[FIRST_KEY] * 40, *page(2, 4)])
    late = Mirror()
    observe(cache, late)
    assert late.prefixes == mirror.prefixes
    assert len(mirror.prefixes) == 1


def test_without_observers_no_block_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.extensions.kv_events.blocks._hash", pytest.fail)
    cache = Cache(StateMemory(PAGES))
    run(cache, page(1, 2, 3))
    run(cache, [*page(1), *page(2)[:5], *page(3)])
    assert cache.prefixes.evict()


def test_an_observer_that_joins_late_hears_of_all_blocks() -> None:
    cache, mirror = Cache(StateMemory(PAGES)), Mirror()
    run(cache, page(1, 2, 3))
    run(cache, [*page(1), *page(2)[:5], *page(3)], "a")
    observe(cache, mirror)
    assert mirror.prefixes == blocks_of(cache.prefixes.tree)
    assert len(mirror.prefixes) == 5


def test_blocks_stay_with_the_half_of_a_split_node_in_which_they_end_until_it_is_evicted() -> None:
    cache, mirror = Cache(StateMemory(PAGES)), Mirror()
    observe(cache, mirror)
    run(cache, page(1, 2, 3))
    run(cache, [*page(1), *page(2)[:5], *page(3)])
    assert len(mirror.prefixes) == 4
    for left in (3, 1):  # the leaf used least recently, then the other
        assert cache.prefixes.evict()
        assert len(mirror.prefixes) <= left
        assert mirror.prefixes == blocks_of(cache.prefixes.tree)
    while cache.prefixes.evict():
        pass
    assert not mirror.prefixes


def test_an_observer_that_observes_again_hears_of_all_blocks_again_and_of_changes_once() -> None:
    cache, mirror = Cache(StateMemory(PAGES)), Mirror()
    observe(cache, mirror)
    run(cache, page(1, 2))
    mirror.cleared()
    observe(cache, mirror)
    run(cache, page(1, 2, 3))
    assert len(mirror.prefixes) == 3


def test_a_hash_follows_from_salt_and_all_tokens_before() -> None:
    one, other = block_hashes(None, page(1, 2)), block_hashes(None, page(3, 2))
    assert one[1] != other[1]
    assert block_hashes("a", page(1))[0] not in (one[0], block_hashes("", page(1))[0])
    assert block_hashes("", page(1)) != one[:1]
    assert block_hashes(None, [*page(1, 2), 7]) == one
    assert all(0 <= each < 2**64 for each in one)


def test_hashes_are_the_same_on_every_machine() -> None:
    assert block_hashes(None, page(1, 2)) == [8_281_304_032_778_923_918, 15_154_843_334_680_301_898]
    assert block_hashes("salt", page(1)) == [14_098_524_509_179_676_295]


def test_an_event_has_the_tokens_since_its_parent() -> None:
    events: list[Any] = []

    class Recorder(Mirror):
        def stored(self, blocks: Blocks) -> None:
            super().stored(blocks)
            events.append(blocks)

    cache = Cache(StateMemory(PAGES))
    observe(cache, Recorder())
    sequence = Sequence(cache, page(1, 2), "s")
    sequence.compute(40)
    sequence.compute()
    first, second = block_hashes("s", page(1, 2))
    assert [(one.hashes, one.parent, one.salt) for one in events] == [
        ((first,), None, "s"),
        ((second,), first, None),
    ]
    assert [one.tokens.tolist() for one in events] == [page(1), page(2)]
