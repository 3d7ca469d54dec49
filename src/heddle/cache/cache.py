"""The cache of an engine: the only way in for other rooms, and the rules of ownership.

Ownership::

    Sequence --has--> PageTable --holds, once per entry--> page <--keeps, once per name-- Node
                          |                                 |                              |
                          +--holds--> source of a copy      +-- no owner: free             |
                          +--cursor, locks---------------------------------------------> Node

A table holds its pages until `SequencePages.release`. The tree keeps the pages of its nodes
until it evicts the nodes. It evicts when pages are short, and never evicts a node that a cursor
locks. A page has at most one writer: a full page is shared and never written again. If a prefix
ends inside a page, the executor copies that page before a sequence continues it.

The cursor of a table is the node where the sequence's published tokens end. `replace_end_page`
makes the nodes on the path to the cursor name pages that the table holds. So eviction can free
every page that no table holds, and `available` is exact without a search.

These rules are for the group of all positions. In a windowed group, a table holds only the pages
that its next token sees. For fixed-size state, a table holds the snapshot from which it continues,
until the executor has copied the snapshot. The tree names windowed pages and snapshots only until
their pools revoke them, so every page that no table holds can be freed there too. A match ends
where a sequence can continue: at a position with the pages of its windows and a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.cache.cached_prefixes import CachedPrefixes
from heddle.cache.disk_pages import DiskPages
from heddle.cache.pools import Pools
from heddle.cache.sequence_pages import SequencePages

if TYPE_CHECKING:
    from heddle.disk.tier import DiskStats, DiskTier
    from heddle.state import StateMemory


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Figures of the prefix cache at one moment, and totals since the start.

    Attributes:
        enabled: whether the cache finds and keeps prefixes.
        hits: requests that found tokens of their prompt.
        misses: requests that found no tokens.
        query_tokens: prompt tokens looked up.
        hit_tokens: prompt tokens found and therefore not computed.
        lost_tokens: prompt tokens found and computed nevertheless, because the state after them
            is not in memory: a snapshot, or the pages of a window.
        nodes: nodes of the tree.
        cached_tokens: tokens in these nodes.
        cached_bytes: bytes of the pages and snapshots that the tree keeps.
        capacity_bytes: bytes of all pages and snapshots.
        evictions: nodes evicted.
        disk: figures of the disk tier; None without one.
    """

    enabled: bool
    hits: int
    misses: int
    query_tokens: int
    hit_tokens: int
    lost_tokens: int
    nodes: int
    cached_tokens: int
    cached_bytes: int
    capacity_bytes: int
    evictions: int
    disk: DiskStats | None

    @property
    def hit_rate(self) -> float:
        """Share of requests that found tokens, 0 to 1; 0 before the first request."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def mean_hit_tokens(self) -> float:
        """Mean number of tokens found by requests that found tokens."""
        return self.hit_tokens / max(1, self.hits)


class Cache:
    """The parts of a cache, and what concerns all of them.

    Callers hold the part that they use. Only `stats` is thread-safe: the scheduler is the only
    caller of the parts, and nobody closes or flushes the cache during a step.

    Args:
        memory: numbers of pages of each group, and of snapshots.
        enabled: whether the cache finds and keeps prefixes.
        most_nodes: most nodes of the tree; 0: as many as the pages allow.
        disk: disk tier that saves evicted full pages and restores them; None: no disk tier.

    Attributes:
        pages: gives pages to sequences.
        prefixes: finds and keeps prefixes.
        disk: restores prefixes from files.
    """

    def __init__(
        self,
        memory: StateMemory,
        *,
        enabled: bool = True,
        most_nodes: int = 0,
        disk: DiskTier | None = None,
    ) -> None:
        self._pools = Pools(memory)
        self._tier = disk
        self.prefixes = CachedPrefixes(
            self._pools, enabled=enabled, most_nodes=most_nodes, disk=disk
        )
        self.pages = SequencePages(self._pools, self.prefixes)
        self.disk = DiskPages(self._pools, self.prefixes, self.pages, disk)

    def close(self, *, keep: bool) -> None:
        """Close the disk tier, if there is one. With `keep`, first save full pages in memory."""
        if self._tier is not None:
            self._tier.close(self.prefixes.warm_pages() if keep else ())

    def set_enabled(self, enabled: bool) -> None:
        """Switch the prefix cache on or off. Switching it off drops all prefixes.

        Sequences that run at that moment publish nothing more.
        """
        if not enabled:
            self.flush()
        self.prefixes.enabled = enabled

    def flush(self) -> None:
        """Drop all prefixes, on disk too.

        Running sequences keep their pages, and publish nothing more.
        """
        self.pages.stop_publishing()
        self.prefixes.tree.clear()
        self.disk.flush()

    def stats(self) -> PrefixCacheStats:
        """Figures of the prefix cache. Any thread may call this.

        It takes no lock, so the figures may include only some of the changes of a step.
        """
        prefixes = self.prefixes
        return PrefixCacheStats(
            enabled=prefixes.enabled,
            hits=prefixes.hits,
            misses=prefixes.misses,
            query_tokens=prefixes.query_tokens,
            hit_tokens=prefixes.hit_tokens,
            lost_tokens=prefixes.lost_tokens,
            nodes=prefixes.tree.nodes,
            cached_tokens=prefixes.tree.tokens,
            cached_bytes=self._pools.kept_bytes,
            capacity_bytes=self._pools.memory.bytes,
            evictions=prefixes.evictions,
            disk=None if self._tier is None else self._tier.stats(),
        )
