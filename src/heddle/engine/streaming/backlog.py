"""Bounds the backlog: the unread output of an event loop.

The engine finishes a request long before a slow client has read its answer, and some clients never
read. The bound is on memory, not on time: below it, slow clients lose nothing. Above it, the
largest unread answer is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from heddle.errors import BacklogError

if TYPE_CHECKING:
    from heddle.outputs import Delta


class Holder(Protocol):
    """Output that waits for its reader."""

    @property
    def held(self) -> int:
        """Approximate size of the output in bytes."""

    def cut(self, error: BacklogError) -> None:
        """Drop all output, so that `held` is 0. The reader gets the error instead."""


class Backlog:
    """All holders of one event loop, and a bound on their bytes. Used only from this loop.

    Attributes:
        cut: how many holders have lost their output.
    """

    def __init__(self, most: int) -> None:
        """`most` is the bound in bytes."""
        self.cut = 0
        self._most = most
        self._holders: WeakSet[Holder] = WeakSet()

    @property
    def held(self) -> int:
        """Approximate bytes that all holders hold."""
        return sum(holder.held for holder in self._holders)

    def watch(self, holder: Holder) -> None:
        """Count `holder` as long as it lives."""
        self._holders.add(holder)

    def check(self) -> None:
        """Cut the largest holder if the total is above the bound. Call it when a holder has grown.

        One cut is enough: the largest holder holds at least the bytes that arrived since the total
        was within the bound.
        """
        if self.held <= self._most:
            return
        largest = max(self._holders, key=lambda holder: holder.held)
        error = BacklogError(
            f"unread answers take more than {self._most} bytes, and this answer is the largest"
            " of them. Read it faster, ask for fewer tokens, choices or logprobs, or raise the"
            " setting `backlog`"
        )
        largest.cut(error)
        self.cut += 1


def delta_bytes(delta: Delta) -> int:
    """Approximate bytes of a delta. Measured: 295 without alternatives, 2,685 with 20."""
    size = 300 + sum(120 * len(token.top) for token in delta.tokens)
    size += sum(150 + 120 * len(one.top) for one in delta.prompt_logprobs if one is not None)
    return size if delta.embedding is None else size + 4 * len(delta.embedding)
