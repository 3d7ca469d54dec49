"""Pages of prefixes in files: found and read for sequences, and copied to files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.disk.tier import Restore
from heddle.state import PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.cache.cached_prefixes import CachedPrefixes
    from heddle.cache.page_tables import PageTable
    from heddle.cache.pools import Pools
    from heddle.cache.radix import Match, Salt
    from heddle.cache.sequence_pages import SequencePages
    from heddle.disk.tier import DiskTier

__all__ = ["DiskPages", "Restore"]


class DiskPages:
    """Restores prefixes from disk tiers. It owns the list of tiers that may have them.

    The scheduler restores. A save or restore of a slot file lends a tier, and copies pages to it,
    while no step is in flight.

    Args:
        disk: the tier of the settings; None: only lent tiers have pages.
    """

    def __init__(
        self, pools: Pools, prefixes: CachedPrefixes, pages: SequencePages, disk: DiskTier | None
    ) -> None:
        self._snapshots = pools.snapshots
        self._prefixes = prefixes
        self._pages = pages
        self._tiers = [] if disk is None else [disk]

    def find(self, match: Match, tokens: Sequence[int], most: int | None = None) -> Restore | None:
        """Find pages on disk that continue the full pages of the match; None if there are none.

        See `CachedPrefixes.match` for `most`. Changes nothing.
        """
        most = len(tokens) - 1 if most is None else most
        first, end = match.length // PAGE_TOKENS, most // PAGE_TOKENS
        if not self._tiers or not self._prefixes.enabled or first >= end:
            return None
        run = TokenArray("i", tokens[: end * PAGE_TOKENS])
        found = (tier.find(match.salt, run, first) for tier in self._tiers)
        return next((restore for restore in found if restore is not None), None)

    def begin(self, restore: Restore) -> None:
        """Start to read the pages that `find` found."""
        restore.tier.begin(restore)

    def load(self, table: PageTable, restore: Restore, most: int) -> int:
        """Append up to `most` pages that have been read to the table. Returns how many.

        The table must end just before the first of these pages. If free pages are short, it gets
        fewer. If the restore ends with a snapshot, the table continues from that snapshot.
        """
        loaded = 0
        restore.tier.check(restore)
        while loaded < most and restore.ready:
            if restore.awaits_snapshot:
                self._load_snapshot(table, restore)
                break
            if not self._pages.grow(table, (len(table.pages) + 1) * PAGE_TOKENS):
                break
            windows = [window.pages[-1] for window in table.windows]
            restore.tier.load(restore, table.pages[-1], windows)
            self._pages.give_back(table, restore.prefix.tokens, len(table.pages) * PAGE_TOKENS)
            loaded += 1
        return loaded

    def restored(self, table: PageTable, restore: Restore, computed: int) -> int:
        """Number of computed tokens of a table after `load`; before, the table had `computed`.

        A model with fixed-size state needs the complete restore: its only snapshot comes last.
        """
        if self._snapshots and not restore.is_complete:
            return computed
        return len(table.pages) * PAGE_TOKENS

    def cancel(self, restore: Restore) -> None:
        """Cancel a restore: its sequence no longer waits for it."""
        restore.tier.cancel(restore)

    def lend(self, tier: DiskTier) -> None:
        """Let requests find the pages of a further tier until `take_back`."""
        self._tiers.append(tier)

    def take_back(self, tier: DiskTier) -> None:
        """Let no more requests find the pages of a tier that was lent."""
        self._tiers.remove(tier)

    def copy(
        self, tier: DiskTier, salt: Salt, tokens: TokenArray[int], first: int, most: int
    ) -> int:
        """Let a tier save full pages of `tokens`, at most `most` from page `first` on.

        Only the last page of `tokens` brings its snapshot. Returns how many pages are in memory
        without a gap.
        """
        match, number = self._prefixes.tree.match(salt, tokens), first
        last = min(first + most, match.length // PAGE_TOKENS)
        for node in match.path:
            if node.end // PAGE_TOKENS <= number:
                continue
            for page in reversed(list(self._prefixes.full_pages(node))):
                position = len(page.tokens) // PAGE_TOKENS - 1
                if position > number or number == last:
                    return number - first
                if position == number:
                    whole = len(page.tokens) == len(tokens)
                    tier.save(page if whole else replace(page, snapshot=None))
                    number += 1
        return number - first

    def _load_snapshot(self, table: PageTable, restore: Restore) -> None:
        """Let the table continue from the snapshot that was read. Cancel if no snapshot is free."""
        assert self._snapshots is not None
        snapshot = self._snapshots.take()
        if snapshot is None:
            restore.tier.cancel(restore)
            restore.ready.clear()
            return
        restore.tier.load_snapshot(restore, snapshot)
        self._pages.copied(table)
        table.state = table.snapshot = snapshot
        self._snapshots.pool.hold(snapshot)
        self._pages.end_snapshot(table, restore.prefix.tokens, len(restore.prefix.tokens))

    def flush(self) -> None:
        """Drop the pages of all tiers."""
        for tier in self._tiers:
            tier.flush()
