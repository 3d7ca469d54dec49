"""The prefix tree, as viewers see it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.cache.pages import PagePool
from heddle.cache.radix import RadixTree
from heddle.extensions.sight.tree import described
from heddle.state import PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running
    from heddle.cache.radix import Node


def write(tree: RadixTree, pool: PagePool, tokens: list[int], salt: str | None = None) -> Node:
    """Put a prefix into the tree, as a sequence that stays does."""
    tree.clock += 1
    run = TokenArray("i", tokens)
    node = tree.enter(tree.match(salt, run))
    pages = [pool.take() for _ in range(-(-len(tokens) // PAGE_TOKENS))]
    node = tree.append(node, run[node.end :], pages)
    for page in pages:
        pool.let_go(page)
    return node


def shown(tree: RadixTree, most: int = 500) -> dict:
    now = time.perf_counter()
    return described(tree, 10, most, lambda clock: now - 100 + clock)


def test_runs_of_one_path_are_one_and_branches_are_shown() -> None:
    pool = PagePool(100)
    tree = RadixTree(pool)
    shared = [1] * 320  # three nodes
    leaf = write(tree, pool, [*shared, 2, 2])
    tree.leave(leaf)
    write(tree, pool, [*shared, 3, 3, 3])
    nodes = shown(tree)["nodes"]
    assert [(one["parent"], one["start"], one["tokens"]) for one in nodes] == [
        (None, 0, 0),
        (0, 0, 320),
        (1, 320, 3),
        (1, 320, 2),
    ]
    assert [one["hits"] for one in nodes] == [0, 1, 0, 0]
    assert [one["in_use"] for one in nodes] == [True, True, True, False]
    assert nodes[1]["bytes"] == 100
    assert nodes[3]["age"] > nodes[2]["age"]


def test_the_newest_runs_are_shown_and_the_others_counted() -> None:
    pool = PagePool(100)
    tree = RadixTree(pool)
    for first in range(1, 6):
        tree.leave(write(tree, pool, [first] * 10))
    all_ = shown(tree, most=3)
    assert [one["tokens"] for one in all_["nodes"]] == [0, 10, 10]
    assert all_["left_out"] == 3
    assert all_["nodes"][1]["age"] <= all_["nodes"][2]["age"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=90), max_size=12))
def test_all_tokens_are_in_the_runs(prefixes) -> None:
    pool = PagePool(200)
    tree = RadixTree(pool)
    for prefix in prefixes:
        tree.leave(write(tree, pool, prefix))
    all_ = shown(tree)
    assert sum(one["tokens"] for one in all_["nodes"]) == tree.tokens
    assert all_["left_out"] == 0
    for one in all_["nodes"]:
        if one["parent"] is not None:
            above = all_["nodes"][one["parent"]]
            assert one["start"] == above["start"] + above["tokens"]
            assert one["hits"] <= above["hits"] or above["parent"] is None


def test_the_route_shows_no_tokens_and_no_salts(serve: Callable[..., Running]) -> None:
    server = serve()
    body = {"prompt": "hello there", "max_tokens": 2, "cache_salt": "secret"}
    server.post("/v1/completions", body)
    server.post("/v1/completions", body)
    answer = server.get("/v1/prefix_cache/tree?most=2")
    nodes = answer.json()["nodes"]
    assert [one["parent"] for one in nodes] == [None, 0]
    assert nodes[1]["hits"] == 1
    assert "secret" not in answer.text
    assert set(nodes[1]) == {"id", "parent", "start", "tokens", "bytes", "age", "hits", "in_use"}
    for wrong in ("0", "x", "2001", "nan"):
        refused = server.get(f"/v1/prefix_cache/tree?most={wrong}")
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "most"


def test_limits_are_measured_by_admins_and_shown(serve: Callable[..., Running]) -> None:
    server = serve(api_key=("sk-1",), admin_key=("sk-boss",))
    user, boss = ({"authorization": f"Bearer {key}"} for key in ("sk-1", "sk-boss"))
    assert server.post("/v1/engine/limits", {}, headers=user).status_code == 403
    measured = server.post("/v1/engine/limits", {}, headers=boss).json()
    assert measured == {"peak_bytes_per_second": 1e5, "peak_operations_per_second": 1e6}
    events = server.get("/v1/engine/events?seconds=0.01", headers=user).text
    assert '"peak_bytes_per_second":100000.0' in events
