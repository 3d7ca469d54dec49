"""The order in which leaves are evicted."""

from array import array

import hypothesis.strategies as st
from hypothesis import given

from cache_integrity import check_leaves
from heddle.cache.leaves import LeafQueue
from heddle.cache.radix import Node, Root

ROOT = Root(None)


def leaf(last_used: int, length: int) -> Node:
    return Node(ROOT, 0, array("i", range(length)), [], last_used)


def popped(queue: LeafQueue) -> list[Node]:
    return list(iter(queue.pop, None))


def test_leaves_pop_by_age_then_by_length() -> None:
    queue = LeafQueue()
    leaves = {(age, length): leaf(age, length) for age in (3, 1, 2) for length in (7, 2, 5)}
    for one in leaves.values():
        queue.push(one)
    check_leaves(queue, set(leaves.values()))
    assert popped(queue) == [leaves[key] for key in sorted(leaves)]


def test_stale_entries_are_not_popped() -> None:
    queue = LeafQueue()
    used, locked, grown, parent, gone, stays = leaves = [leaf(1, 4) for _ in range(6)]
    for one in leaves:
        queue.push(one)
    used.last_used = 2
    locked.locks = 1
    grown.tokens.append(9)
    parent.children[1] = stays
    gone.parent = None
    check_leaves(queue, {stays})
    queue.push(used)
    assert popped(queue) == [stays, used]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), min_size=1))
def test_stale_entries_do_not_pile_up(uses: list[tuple[int, int]]) -> None:
    queue = LeafQueue()
    leaves = [leaf(0, 3) for _ in range(10)]
    for which, age in uses * 20:
        leaves[which].last_used = age
        queue.push(leaves[which])
        assert len(queue._heap) <= 64 + 2 * len(leaves)
    pushed = {leaves[which] for which, _ in uses}
    first = dict.fromkeys(popped(queue))  # a leaf may have two equal entries
    assert set(first) == pushed
    assert [one.last_used for one in first] == sorted(one.last_used for one in pushed)
