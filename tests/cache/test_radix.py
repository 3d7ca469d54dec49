"""The prefix tree: matches, splits and joins of nodes, and the order of eviction."""

from array import array
from collections import Counter
from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cache_integrity import check_pool, check_tree
from heddle.cache.pages import NO_TICKET, PagePool, RevocablePool
from heddle.cache.radix import RUN_TOKENS, Node, RadixTree, common_prefix
from heddle.state import PAGE_TOKENS


def run(tokens: Iterable[int]) -> "array[int]":
    return array("i", tokens)


class Writer:
    """Publishes strings in its own pages, as a sequence does."""

    def __init__(self, pages: int = 200) -> None:
        self.pool = PagePool(pages)
        self.states = RevocablePool(9)
        self.tree = RadixTree(self.pool, (), self.states)
        self.cursors: list[Node] = []

    def write(self, tokens: list[int], salt: str | None = None, *, stay: bool = False) -> Node:
        """Put a string into the tree. The cursor leaves at once unless `stay`."""
        self.tree.clock += 1
        node = self.tree.enter(self.tree.match(salt, run(tokens)))
        pages = [self.pool.take() for _ in range(-(-len(tokens) // PAGE_TOKENS))]
        node = self.tree.append(node, run(tokens[node.end :]), pages)
        for page in pages:
            self.pool.let_go(page)
        self.cursors.append(node)
        if not stay:
            self.leave(node)
        self.check()
        return node

    def snapshot(self, node: Node) -> int:
        """Take a snapshot at the end of a node; returns its ticket."""
        snapshot = self.states.take()
        self.tree.set_state(node, snapshot)
        self.states.let_go(snapshot)
        return node.state

    def enter(self, tokens: Iterable[int], salt: str | None = None) -> Node:
        self.cursors.append(self.tree.enter(self.tree.match(salt, run(tokens))))
        return self.cursors[-1]

    def follow(self, node: Node, tokens: Iterable[int]) -> Node | None:
        child = self.tree.follow(node, run(tokens))
        if child is not None:
            self.cursors[self.cursors.index(node)] = child
        return child

    def leave(self, node: Node) -> None:
        self.cursors.remove(node)
        self.tree.leave(node)

    def check(self) -> None:
        check_tree(self.tree, self.cursors)
        named = Counter(page for node in self.tree.walk() for page in node.pages)
        check_pool(self.pool, {}, named)

    def found(self, tokens: list[int], salt: str | None = None) -> int:
        return self.tree.match(salt, run(tokens)).length

    def runs(self) -> list[list[int]]:
        return sorted(node.tokens.tolist() for node in self.tree.walk())


def test_a_match_ends_at_the_first_different_token() -> None:
    writer = Writer()
    writer.write([1, 2, 3, 4, 5])
    writer.write([1, 2, 3, 7, 8])
    lengths = {(1, 2, 3, 4, 5, 6): 5, (1, 2, 3, 7): 4, (1, 2, 9): 2, (1, 2, 4): 2, (9,): 0}
    assert {tokens: writer.found([*tokens]) for tokens in lengths} == lengths
    assert writer.runs() == [[1, 2, 3], [4, 5], [7, 8]]


def test_a_node_with_two_cursors_is_split_for_a_third() -> None:
    """The lower half locks the upper half once, for any number of cursors in it."""
    writer = Writer()
    first = writer.write([1, 2, 3, 4], stay=True)
    cursors = [first, writer.enter([1, 2, 3, 4]), writer.enter([1, 2])]
    writer.check()
    for cursor in cursors:
        writer.leave(cursor)
        writer.check()
    assert writer.tree.evict() is not None
    assert writer.tree.evict() is not None
    assert writer.tree.nodes == 0


def test_salts_share_no_nodes() -> None:
    writer = Writer()
    writer.write([1, 2, 3], "one")
    assert [writer.found([1, 2, 3], salt) for salt in ("one", "other", None)] == [3, 0, 0]


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 40), st.data())
def test_common_prefix(tokens: list[int], cut: int, data: st.DataObject) -> None:
    other = [5, *tokens[:cut], *data.draw(st.lists(st.integers(0, 2)))]
    pairs = enumerate(zip(tokens, other[1:], strict=False))
    parts = (i for i, (one, another) in pairs if one != another)
    expected = next(parts, min(len(tokens), len(other) - 1))
    assert common_prefix(run(tokens), run(other), 1) == expected
    assert common_prefix(tokens, other[1:]) == common_prefix(other[1:], tokens) == expected


def test_a_root_is_removed_with_its_last_node() -> None:
    writer = Writer()
    for salt in ("a", "b"):
        writer.write([1, 2], salt)
    assert len(writer.tree._roots) == 2
    assert writer.tree.evict() is not None
    assert list(writer.tree._roots) == ["b"]
    node = writer.enter([1], "c")
    assert list(writer.tree._roots) == ["b", "c"]
    writer.leave(node)
    assert list(writer.tree._roots) == ["b"]


def test_a_split_inside_a_page_gives_the_page_to_both_nodes() -> None:
    writer = Writer()
    writer.write([*range(80)])
    node = writer.enter([*range(40), 99])
    [lower] = node.children.values()
    assert (node.start, node.end, node.pages) == (0, 40, [0, 1])
    assert (lower.start, lower.end, lower.pages) == (40, 80, [1, 2])
    writer.check()


def test_a_split_between_pages_shares_no_page() -> None:
    writer = Writer()
    writer.write([*range(80)])
    node = writer.enter(range(64))
    [lower] = node.children.values()
    assert (node.pages, lower.pages) == ([0, 1], [2])
    writer.check()


def test_a_match_takes_a_boundary_page_from_its_deepest_node() -> None:
    writer = Writer()
    writer.write([*range(80)])  # pages 0, 1, 2
    writer.write([*range(40), *range(100, 140)])  # its own pages are 3, 4, 5
    first = writer.tree.match(None, run(range(80)))
    second = writer.tree.match(None, run([*range(40), *range(100, 140)]))
    assert first.pages == [0, 1, 2]
    assert second.pages == [0, 4, 5]
    assert writer.tree.match(None, run(range(33))).pages == [
        0,
        4,
    ]  # the newest copy serves both branches
    assert second.whole_pages().pages == [0, 4]


def test_whole_pages_drops_the_partial_page_of_a_match() -> None:
    writer = Writer()
    writer.write([*range(40)])
    writer.write([*range(40), *range(100, 110)])
    match = writer.tree.match(None, run([*range(40), *range(100, 110)])).whole_pages()
    assert (match.length, match.pages, len(match.path)) == (32, [0], 2)
    nothing = writer.tree.match(None, run(range(20))).whole_pages()
    assert (nothing.length, nothing.pages, len(nothing.path)) == (0, [], 1)


def test_a_leaf_grows_in_place_only_with_a_single_cursor() -> None:
    writer = Writer()
    pages = [writer.pool.take() for _ in range(3)]
    cursor = writer.enter([])
    cursor = writer.cursors[0] = writer.tree.append(cursor, run(range(20)), pages)
    assert writer.tree.append(cursor, run(range(20, 50)), pages) is cursor
    assert (cursor.end, cursor.pages) == (50, pages[:2])
    other = writer.enter(range(50))
    assert other is cursor
    below = writer.cursors[0] = writer.tree.append(cursor, run(range(50, 60)), pages)
    for page in pages:
        writer.pool.let_go(page)
    assert below is not cursor
    assert (other.end, below.start, below.end) == (50, 50, 60)
    writer.check()


def test_nodes_are_joined_when_no_cursor_needs_their_boundary() -> None:
    writer = Writer()
    writer.write([*range(70)])
    first = writer.enter(range(40))
    second = writer.enter(range(40))
    below = writer.follow(first, range(40, 70))
    assert below is not None
    writer.check()
    assert writer.tree.nodes == 2
    assert writer.follow(second, range(40, 70)) is below
    assert (writer.runs(), below.pages) == ([[*range(70)]], [0, 1, 2])
    writer.check()


def test_a_joined_node_keeps_the_page_that_holds_the_tokens_of_both() -> None:
    writer = Writer()
    upper = writer.write([*range(80)], stay=True)  # pages 0, 1, 2
    writer.write([*range(40), *range(100, 140)])  # its page 4 goes to the node above both branches
    writer.leave(upper)
    writer.tree.evict()
    upper = writer.enter(range(40))
    assert upper.pages == [0, 4]
    below = writer.follow(upper, range(40, 80))
    assert below is not None
    assert (below.end, below.pages) == (80, [0, 1, 2])
    writer.check()


def test_nodes_end_at_multiples_of_the_longest_run() -> None:
    writer = Writer()
    tokens = [i % 1000 for i in range(2 * RUN_TOKENS + 100)]
    writer.write(tokens[: RUN_TOKENS - 5], stay=True)
    writer.write(tokens)
    ends = sorted(node.end for node in writer.tree.walk())
    assert ends == [RUN_TOKENS - 5, RUN_TOKENS, 2 * RUN_TOKENS, len(tokens)]
    assert writer.found(tokens) == len(tokens)
    gone = writer.tree.evict()
    assert gone is not None
    assert writer.found(tokens) == 2 * RUN_TOKENS
    writer.write(tokens)
    assert sorted(node.end for node in writer.tree.walk()) == ends


def test_eviction_takes_the_least_recently_used_unlocked_leaf() -> None:
    writer = Writer()
    writer.write([1, 2, 3])
    writer.write([1, 2, 4])
    locked = writer.write([5], stay=True)
    writer.write([1, 2, 3])  # used again
    gone = [node.tokens.tolist() for node in iter(writer.tree.evict, None)]
    assert gone == [[4], [3], [1, 2]]
    writer.check()
    writer.leave(locked)
    assert writer.tree.evict() is locked
    assert (writer.pool.kept, writer.pool.free) == (0, 200)


def test_eviction_takes_the_shorter_of_two_leaves_of_equal_age() -> None:
    writer = Writer()
    nodes = [writer.write(tokens, stay=True) for tokens in ([1] * 9, [2] * 3, [3] * 5)]
    for node in nodes:
        writer.leave(node)
    assert [len(node.tokens) for node in iter(writer.tree.evict, None)] == [3, 5, 9]


def test_a_split_leaf_is_ordered_by_its_new_length() -> None:
    writer = Writer()
    nodes = [writer.write(tokens, stay=True) for tokens in ([1] * 9, [2] * 5)]
    for node in nodes:
        writer.leave(node)
    writer.enter([1] * 7)
    assert len(nodes[0].tokens) == 2
    assert [len(node.tokens) for node in iter(writer.tree.evict, None)] == [2, 5]
    writer.check()


def test_pruning_removes_a_node_and_ancestors_that_lead_only_to_it() -> None:
    writer = Writer()
    writer.write([1, 2, 3])
    writer.write([1, 2, 4])
    match = writer.tree.match(None, run([1, 2, 3]))
    writer.tree.prune(match.path[-1])
    assert writer.runs() == [[1, 2], [4]]
    writer.tree.prune(writer.tree.match(None, run([1, 2, 4])).path[-1])
    assert (writer.runs(), writer.tree._roots) == ([], {})
    writer.check()


def test_a_snapshot_stays_at_its_token_and_is_dropped_with_its_node() -> None:
    writer = Writer()
    node = writer.write([*range(10)], stay=True)
    ticket = writer.snapshot(node)
    writer.leave(node)
    below = writer.write([*range(15)], stay=True)
    assert below is not node, "the end with the snapshot is passed"
    writer.leave(below)
    writer.enter(range(10))
    upper = writer.enter(range(5))
    assert (upper.state, node.start, node.end, node.state) == (NO_TICKET, 5, 10, ticket)
    writer.leave(upper)
    walked = writer.follow(node, range(10, 15))
    assert walked is below
    assert writer.tree.nodes == 3, "a node with a snapshot is not joined to the next"
    writer.leave(walked)
    assert writer.states.kept == 1
    while writer.tree.evict() is not None:
        pass
    assert (writer.states.kept, writer.states.free) == (0, 9)


def test_a_new_snapshot_replaces_the_previous_one_of_its_node() -> None:
    writer = Writer()
    node = writer.write([1, 2, 3], stay=True)
    first, second = writer.snapshot(node), writer.snapshot(node)
    assert (first, second, node.state, writer.states.kept) == (0, 1, second, 1)


def test_clear_removes_all_nodes() -> None:
    writer = Writer()
    writer.write([1, 2, 3], "a")
    node = writer.write([1, 2, 4], stay=True)
    writer.snapshot(node)
    writer.tree.clear()
    writer.cursors.clear()
    assert (writer.tree.nodes, writer.tree.tokens, writer.pool.kept) == (0, 0, 0)
    assert (writer.tree.evict(), writer.states.kept) == (None, 0)
    writer.check()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda node: setattr(node, "locks", 1), "1 locks"),
        (lambda node: node.pages.append(0), "pages for"),
        (lambda node: setattr(node, "last_used", 99), "used before its child"),
        (lambda node: node.tokens.append(1), "not all counted"),
        (lambda node: setattr(node, "start", 1), "start is not the parent's end"),
    ],
)
def test_integrity_check_names_the_damage(damage, said: str) -> None:
    writer = Writer()
    node = writer.write([1, 2, 3])
    damage(node)
    with pytest.raises(AssertionError, match=said):
        writer.check()
