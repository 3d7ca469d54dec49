"""The prefix tree as those who look see it: sizes, ages, hits. Never tokens.

The engine thread walks the tree between two steps, so the walk is bounded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.cache.radix import Node, RadixTree

MOST_NODES = 4000
"""Nodes to look at: 4 ms."""


@dataclass(slots=True, eq=False)
class _Run:
    """Nodes of one path without branches, from `first` to `last`."""

    parent: _Run | None
    first: Node
    last: Node
    nodes: int = 0
    tokens: int = 0
    pages: int = 0
    hits: int = 0

    def add(self, node: Node) -> None:
        """Let the run go on with a node."""
        self.last = node
        self.nodes += node.parent is not None
        self.tokens += len(node.tokens)
        self.pages += len(node.pages)
        self.hits += node.hits


def described(
    tree: RadixTree, page_bytes: int, most: int, used_at: Callable[[int], float]
) -> dict[str, Any]:
    """The runs of a tree, parents first: at most `most`, the most recently used.

    Args:
        used_at: the time, of `time.perf_counter`, at which the tree's clock showed a number.
    """
    runs = _runs(tree.newest(MOST_NODES))[:most]
    for run in reversed(runs):  # a sequence that began below a run has used it, too
        if run.parent is not None and run.parent.parent is not None:
            run.parent.hits += run.hits
    numbers = {run: number for number, run in enumerate(runs)}
    now = time.perf_counter()
    nodes = [
        {
            "id": number,
            "parent": None if run.parent is None else numbers[run.parent],
            "start": run.first.start,
            "tokens": run.tokens,
            "bytes": run.pages * page_bytes,
            "age": 0.0 if run.first.locks else round(now - used_at(run.first.last_used), 1),
            "hits": run.hits if run.parent is not None else 0,
            "in_use": run.first.locks > 0,
        }
        for run, number in numbers.items()
    ]
    return {"nodes": nodes, "left_out": tree.nodes - sum(run.nodes for run in runs)}


def _runs(nodes: list[Node]) -> list[_Run]:
    """The runs of nodes. `nodes` has parents before children."""
    run_of: dict[Node, _Run] = {}
    runs: list[_Run] = []
    for node in nodes:
        above = run_of[node.parent] if node.parent is not None else None
        if above is not None and above.parent is not None and len(above.last.children) == 1:
            run = above
        else:
            run = _Run(above, node, node)
            runs.append(run)
        run.add(node)
        run_of[node] = run
    return runs
