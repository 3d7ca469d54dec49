"""The pages that a sequence holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.cache.radix import Node
    from heddle.step import WindowPages


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one sequence: position p lives in `pages[p // PAGE_TOKENS]`.

    A table is empty at first. Only the parts of a `Cache` write to it.

    Attributes:
        pages: page ids.
        cursor: the node of the tree where the published tokens end; None if the sequence publishes
            nothing.
        source: page to copy to the table's next page before a step computes that page; None if
            there is nothing to copy.
        windows: pages of each windowed group, up to the same position as `pages`.
        state: snapshot to copy to the slot's state before the first step, or None.
        snapshot: snapshot that the step in flight copies the slot's state to, or None.
        lost: tokens that the last match lost; see `Match`.
    """

    pages: list[int] = field(default_factory=list)
    cursor: Node | None = None
    source: int | None = None
    windows: list[WindowPages] = field(default_factory=list)
    state: int | None = None
    snapshot: int | None = None
    lost: int = 0
