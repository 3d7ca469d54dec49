"""Which leaf of the prefix tree goes first: the least recently used, of several the shorter."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sized


class Evictable(Protocol):
    """What the queue looks at in a node of the tree."""

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
    """A heap of leaves that may go. Amortised O(log n) an operation.

    An entry is a claim made when it was pushed: its node is a leaf without locks, last used then,
    of that length. Whoever changes one of these to another such leaf pushes again; an entry whose
    claim is no longer true is dropped when it comes up, or when such entries prevail.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, N]] = []
        self._serial = count()  # so that nodes are never compared
        self._sweep_at = 64

    def push(self, leaf: N) -> None:
        """The node may go from now on, and has this age and length."""
        if len(self._heap) >= self._sweep_at:
            once = {entry[-1]: entry for entry in self._heap if _is_true(entry)}
            self._heap = list(once.values())
            heapq.heapify(self._heap)
            self._sweep_at = 64 + 2 * len(self._heap)
        entry = (leaf.last_used, len(leaf.tokens), next(self._serial), leaf)
        heapq.heappush(self._heap, entry)

    def pop(self) -> N | None:
        """The leaf that goes first, no longer in the queue; None if none may go."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if _is_true(entry):
                return entry[-1]
        return None

    def clear(self) -> None:
        """Forget all entries."""
        self._heap.clear()

    def check_integrity(self, leaves: set[N]) -> None:
        """Exactly these leaves would come up, in time.

        Raises:
            AssertionError: one is missing or surplus.
        """
        queued = {entry[-1] for entry in self._heap if _is_true(entry)}
        assert queued == leaves, f"{len(queued)} leaves are queued and {len(leaves)} may go"


def _is_true(entry: tuple[int, int, int, Evictable]) -> bool:
    last_used, length, _, node = entry
    return (
        node.parent is not None
        and not node.locks
        and not node.children
        and node.last_used == last_used
        and len(node.tokens) == length
    )
