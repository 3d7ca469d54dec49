"""Prefixes of running sequences: from the cache, from an older sequence, or from the disk tier.

A sequence starts at the end of its prefix hit. If an older sequence is computing more of its
tokens, it follows that sequence first (`following.py`). If pages of its prefix are on disk,
`computed` grows with the pages read, and others may follow it.

Computed tokens are published before a prefix is looked up, and when a sequence gives up its slot.
So a step that only decodes spends no time on the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.scheduler.following import find_leader, is_wait_over
from heddle.state import FIRST_KEY

if TYPE_CHECKING:
    from heddle.cache.cache import Cache
    from heddle.cache.page_counts import PageCounts
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.slots import Slots


class Prefixes:
    """Attaches prefixes to sequences, within the pages that no running sequence needs."""

    def __init__(self, cache: Cache, slots: Slots) -> None:
        self._pages = cache.pages
        self._cached = cache.prefixes
        self._disk = cache.disk
        self._slots = slots

    def publish(self) -> None:
        """Publish the computed tokens of all running sequences."""
        for sequence in self._slots.running:
            self._cached.publish(sequence.table, sequence.keys, sequence.computed)

    def latest(self, slot: int, salt: str | None) -> tuple[list[int], int]:
        """The cached tokens of the last sequence in a slot, and how many of them are full pages.

        There are none if that sequence has another salt. Those from a picture on are left out: only
        this process knows its key.
        """
        self.publish()
        latest = self._slots.latest[slot]
        if latest is None or latest[0] != salt:
            return [], 0
        end = next((at for at, key in enumerate(latest[1]) if key >= FIRST_KEY), len(latest[1]))
        match = self._cached.match(salt, latest[1], end)
        return latest[1][: match.length], self._cached.whole_pages(match).length

    def erase(self, slot: int, salt: str | None) -> int:
        """Drop what only the cache holds of the last sequence in a slot. Returns how many tokens.

        It drops nothing of a sequence with another salt.
        """
        latest = self._slots.latest[slot]
        if latest is None or latest[0] != salt:
            return 0
        self._slots.latest[slot] = None
        return self._cached.erase(*latest)

    def unclaimed(self) -> PageCounts:
        """Pages of each group that no running sequence needs for the tokens it has.

        Admission gives out only these pages. So preemptions come only from output, whose length is
        unknown.
        """
        unclaimed = self._pages.available_by_group
        for sequence in self._slots.running:
            unclaimed -= self._pages.claim(sequence.table, sequence.total)
        return unclaimed

    def take(self, sequence: Sequence, available: PageCounts) -> PageCounts | None:
        """Attach the sequence's cached prefix, and follow a sequence that computes more of it.

        If there is no such sequence, start to restore more of the prefix from disk.

        Returns how many of the `available` pages the sequence needs for its tokens. Returns None,
        and changes only its leader (to None), if the pages do not suffice or the sequence has
        already computed more tokens than the cache has.
        """
        sequence.leader = None
        most = sequence.first_needed
        match = self._cached.match(sequence.scope, sequence.keys, most)
        if match.length < sequence.computed:  # the cache was flushed
            return None
        leader, shared = find_leader(sequence, self._slots.running, match.length)
        whole = self._cached.whole_pages(match)
        restore = None if leader else self._disk.find(whole, sequence.keys, most)
        cost = self._pages.cost(match, sequence.total)
        if leader is not None or restore is not None or not available.covers(cost):
            # Take only full pages: the leader or the disk adds the rest of the last page, or the
            # sequence needs all pages and leaves none for the source of a copy.
            match = whole
            cost = self._pages.cost(match, sequence.total)
        if not available.covers(cost):
            return None
        self._pages.attach(sequence.table, match)
        sequence.computed = match.length
        sequence.leader, sequence.shared_tokens = leader, shared
        sequence.restore = restore
        if restore is not None:
            self._disk.begin(restore)
        return cost

    def restart(self, sequence: Sequence) -> None:
        """Let a running sequence start again from the cache, without the pages that it has."""
        self._pages.release(sequence.table)
        sequence.computed = 0
        self._retake(sequence)

    def resume_followers(self) -> None:
        """End the wait of followers whose leader has computed the prefix or has stopped."""
        for sequence in self._slots.running:
            leader = sequence.leader
            if leader is not None and is_wait_over(leader, sequence.shared_tokens):
                self.publish()
                self._retake(sequence)

    def _retake(self, sequence: Sequence) -> None:
        self.take(sequence, self.unclaimed() + self._pages.claim(sequence.table, sequence.total))
