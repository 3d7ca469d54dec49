"""The order in which leaves of the prefix tree are evicted: least recently used, then shortest."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sized


class Evictable(Protocol):
    """The properties of a node of the tree that the queue reads."""

    @property
    def parent(self) -> object | None: ...
    @property
    def locks(self) -> int: ...
    @property
    def children(self) -> Sized: ...
    @property
    def last_used(self) -> int: ...
    @property
    def tokens(self) -> Sized: ...


N = TypeVar("N", bound=Evictable)


class LeafQueue(Generic[N]):
    """A heap of leaves that may be evicted. Amortised O(log n) per operation.

    An entry records the state of a node when the tree pushed it: a leaf without locks, with this
    `last_used` and this length. If the node changes and is again a leaf without locks, the tree
    pushes it again. An entry whose node has changed is stale. The queue drops a stale entry when it
    reaches the top of the heap, and drops all of them when most entries are stale.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, N]] = []
        self._serial = count()  # makes entries differ before their nodes are compared
        self._sweep_at = 64

    def push(self, leaf: N) -> None:
        """Add a leaf that may be evicted, with its current `last_used` and length."""
        if len(self._heap) >= self._sweep_at:
            valid = {entry[-1]: entry for entry in self._heap if _is_true(entry)}
            self._heap = list(valid.values())
            heapq.heapify(self._heap)
            self._sweep_at = 64 + 2 * len(self._heap)
        entry = (leaf.last_used, len(leaf.tokens), next(self._serial), leaf)
        heapq.heappush(self._heap, entry)

    def pop(self) -> N | None:
        """Remove and return the next leaf to evict; None if no leaf may be evicted."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if _is_true(entry):
                return entry[-1]
        return None


def _is_true(entry: tuple[int, int, int, Evictable]) -> bool:
    last_used, length, _, node = entry
    return (
        node.parent is not None
        and not node.locks
        and not node.children
        and node.last_used == last_used
        and len(node.tokens) == length
    )
