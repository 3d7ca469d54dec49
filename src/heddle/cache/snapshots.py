"""Snapshots of fixed-size state: their owners, and the prefixes from which a sequence can continue.

The state of a recurrent layer belongs to one position. A sequence can continue from a prefix only
if the executor copied the state when a sequence had computed exactly this prefix. The executor
copies states of slots to snapshots and back. The tree names snapshots at the ends of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.cache.pages import RevocablePool
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from heddle.cache.radix import Match, Node


class Snapshots:
    """The snapshots of one executor.

    Attributes:
        pool: ids of the snapshots.
        every: number of tokens. Sequences take snapshots at its multiples.
    """

    def __init__(self, size: int, every: int) -> None:
        self.pool = RevocablePool(size)
        self.every = every

    def resumable(self, match: Match, length: int, *, whole: bool = False) -> int:
        """The longest part of the match, at most `length` tokens, that ends at a snapshot.

        With `whole`, it must also end at the end of a page. If there is no such snapshot, the
        result is 0, because an empty prefix needs no snapshot.
        """
        for node in reversed(match.path):
            fits = node.end <= length and not (whole and node.end % PAGE_TOKENS)
            if fits and self.of(node) is not None:
                return node.end
        return 0

    def of(self, node: Node) -> int | None:
        """The snapshot at the end of a node; None if there is none."""
        return self.pool.page(node.state)

    def attach(self, match: Match) -> int | None:
        """Hold the snapshot at the end of a match; None for an empty match."""
        if not match.length:
            return None
        snapshot = self.of(match.path[-1])
        assert snapshot is not None, "a match ends at a snapshot"
        self.pool.hold(snapshot)
        return snapshot

    def take(self) -> int | None:
        """Reserve a snapshot as the target of a copy; None if sequences hold all snapshots."""
        return self.pool.take() if self.pool.available else None
