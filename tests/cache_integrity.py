"""Proofs that every page, node and queue entry of a cache has exactly its right owners.

They read what the parts of a cache keep to themselves. An `AssertionError` names the page or node
that is wrong, and the fault.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from heddle.cache.leaves import _is_true
from heddle.cache.pages import PagePool, RevocablePool
from heddle.cache.radix import RUN_TOKENS, Match, Node, RadixTree
from heddle.state import PAGE_TOKENS, pages_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heddle.cache.cache import Cache
    from heddle.cache.leaves import LeafQueue
    from heddle.cache.page_tables import PageTable
    from heddle.cache.snapshots import Snapshots
    from heddle.cache.windows import WindowGroup
    from heddle.step import WindowPages


def check_cache(cache: Cache) -> None:
    """Check a complete cache. O(pages + nodes)."""
    tables, tree, pools = cache.pages._tables, cache.prefixes.tree, cache._pools
    check_tree(tree, [table.cursor for table in tables if table.cursor is not None])
    held = Counter(page for table in tables for page in table.pages)
    held.update(table.source for table in tables if table.source is not None)
    kept = Counter(page for node in tree.walk() for page in node.pages)
    check_pool(pools.pages, held, kept)
    for table in tables:
        assert len(set(table.pages)) == len(table.pages), f"a table repeats {table.pages}"
        if table.cursor is not None:
            match = _path(table.cursor)
            full = match.pages[: match.length // PAGE_TOKENS]
            assert table.pages[: len(full)] == full, "a table and its path name different pages"
            for group, window in zip(pools.windows, table.windows, strict=False):
                _check_path(group, window, match)
    for number, group in enumerate(pools.windows):
        _check_window(number, group, tables, tree)
    if pools.snapshots:
        _check_snapshots(pools.snapshots, tables, tree)


def check_pool(pool: PagePool, held: Mapping[int, int], kept: Mapping[int, int]) -> None:
    """Check counts, totals and free list. `held` and `kept` count the owners of each page."""
    for counts, named, owners in (
        (pool._holders, held, "holders"),
        (pool._keepers, kept, "keepers"),
    ):
        for page, count in enumerate(counts):
            actual = named.get(page, 0)
            assert count == actual, f"page {page} counts {count} {owners}, but has {actual}"
    free = set(pool._free)
    assert len(free) == len(pool._free), "a page is on the free list twice"
    unowned = set(range(pool.size)).difference(held, kept)
    assert free == unowned, f"free list and owners differ in {sorted(free ^ unowned)}"
    assert pool.held == len(held), f"held is {pool.held}, but {len(held)} pages are held"
    assert pool.kept == len(kept), f"kept is {pool.kept}, but {len(kept)} pages are kept"
    if isinstance(pool, RevocablePool):
        idle = set(kept).difference(held)
        assert set(pool._idle) == idle, f"idle pages differ in {sorted(idle ^ set(pool._idle))}"


def check_tree(tree: RadixTree, cursors: Sequence[Node]) -> None:
    """Check structure, locks, ages, totals and queue of a tree, given all cursors."""
    nodes = list(tree.walk())
    for node in nodes:
        parent = node.parent
        assert parent is not None and parent.end == node.start, "start is not the parent's end"
        assert node.tokens and parent.children[node.tokens[0]] is node, "not its parent's child"
        assert node.start // RUN_TOKENS == (node.end - 1) // RUN_TOKENS, "a run is too long"
        named = pages_for(node.end) - node.start // PAGE_TOKENS
        assert len(node.pages) == named, f"{len(node.pages)} pages for {named}"
        assert len(node.windows) == len(tree._windows), "a windowed group is missing"
        assert all(len(own) == named for own in node.windows), "tickets are missing"
        assert parent.last_used >= node.last_used, "a parent was used before its child"
    for salt, root in tree._roots.items():
        assert root.salt == salt and (root.children or root.locks), "an empty root was kept"
    for node in (*nodes, *tree._roots.values()):
        locked = sum(child.locks > 0 for child in node.children.values())
        here = sum(cursor is node for cursor in cursors)
        assert node.locks == locked + here, f"{node.locks} locks, not {locked} + {here}"
    assert tree.nodes == len(nodes), f"{tree.nodes} nodes counted, {len(nodes)} in the tree"
    assert tree.tokens == sum(len(node.tokens) for node in nodes), "tokens are not all counted"
    check_leaves(tree._leaves, {n for n in nodes if not (n.locks or n.children)})


def check_leaves(queue: LeafQueue[Any], leaves: set[Any]) -> None:
    """Check that the queue holds exactly `leaves`."""
    queued = {entry[-1] for entry in queue._heap if _is_true(entry)}
    assert queued == leaves, f"{len(queued)} leaves are queued, {len(leaves)} may be evicted"


def _check_path(group: WindowGroup, window: WindowPages, match: Match) -> None:
    """Check that a table holds the full pages that its path names in its window."""
    full = max(0, match.length // PAGE_TOKENS - window.first)
    named = [group.pool.page(t) for t in match.tickets(group._number, window.first)[:full]]
    assert window.pages[:full] == named, "a table and its path differ in a window"


def _check_window(
    number: int, group: WindowGroup, tables: Iterable[PageTable], tree: RadixTree
) -> None:
    held: Counter[int] = Counter()
    for table in tables:
        for window in table.windows[number : number + 1]:
            end = window.first + len(window.pages)
            assert end == len(table.pages), f"a window ends at {end}, not {len(table.pages)}"
            assert (window.source is None) == (table.source is None), "a group has no source"
            held.update(window.pages)
            held.update(() if window.source is None else (window.source,))
    tickets = (ticket for node in tree.walk() for ticket in node.windows[number])
    check_pool(group.pool, held, _count_pages(group.pool, tickets))


def _check_snapshots(snapshots: Snapshots, tables: Iterable[PageTable], tree: RadixTree) -> None:
    in_tables = (snapshot for t in tables for snapshot in (t.state, t.snapshot))
    held = Counter(snapshot for snapshot in in_tables if snapshot is not None)
    kept = _count_pages(snapshots.pool, (node.state for node in tree.walk()))
    check_pool(snapshots.pool, held, kept)


def _count_pages(pool: RevocablePool, tickets: Iterable[int]) -> Counter[int]:
    """Number of valid tickets for each page."""
    return Counter(page for page in map(pool.page, tickets) if page is not None)


def _path(node: Node) -> Match:
    """All tokens from the root to the end of a node, as a match."""
    path = [node]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return Match(None, node.end, tuple(path[::-1]))
