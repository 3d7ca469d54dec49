"""The pools of a cache: what the parts of a cache give out, share and take back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.cache.pages import PagePool
from heddle.cache.snapshots import Snapshots
from heddle.cache.windows import WindowGroup

if TYPE_CHECKING:
    from heddle.state import StateMemory


class Pools:
    """Pages of each group, and snapshots. Only the parts of a `Cache` use them.

    Attributes:
        memory: the numbers and sizes of all pages and snapshots.
        pages: pages of the group of all positions.
        windows: the windowed groups.
        snapshots: snapshots of fixed-size state; None if the model has no such state.
    """

    def __init__(self, memory: StateMemory) -> None:
        self.memory = memory
        self.pages = PagePool(memory.pages)
        self.windows = [WindowGroup(sizes, i) for i, sizes in enumerate(memory.windows)]
        self.snapshots = (
            Snapshots(memory.snapshots, memory.snapshot_tokens) if memory.snapshot_bytes else None
        )

    @property
    def kept_bytes(self) -> int:
        """Bytes of the pages and snapshots that the prefix tree keeps."""
        kept = self.pages.kept * self.memory.page_bytes
        for group in self.windows:
            kept += group.pool.kept * group.memory.page_bytes
        if self.snapshots:
            kept += self.snapshots.pool.kept * self.memory.snapshot_bytes
        return kept
