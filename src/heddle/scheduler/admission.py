"""Admission: which sequences hold slots and pages, who waits for them, and who gives them up.

The queue orders waiting sequences by priority, then by the slots and the service of their clients,
then by arrival (`queue.py`). The first of them takes the next free slot, and no other passes it.
Three rules say which running sequence gives way to it, if any (`preemption.py`).

A preempted sequence keeps its tokens and its arrival. Its results do not change, because they
depend on its tokens only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.scheduler.preemption import gives_pages, gives_way, longest_idle
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from heddle.cache.cache import Cache
    from heddle.cache.disk_pages import Restore
    from heddle.scheduler.prefixes import Prefixes
    from heddle.scheduler.queue import Queue
    from heddle.scheduler.sequence import Sequence
    from heddle.scheduler.slots import Slots

_LOADS = 4
"""Most restored pages to copy before a step while streams run. A copy takes at most 0.2 ms."""


class Admission:
    """Moves sequences between the queue and the slots. Not thread-safe.

    Attributes:
        preemptions: how often a sequence was preempted.
    """

    def __init__(self, queue: Queue, slots: Slots, cache: Cache, prefixes: Prefixes) -> None:
        self._queue = queue
        self._slots = slots
        self._pages = cache.pages
        self._cached = cache.prefixes
        self._disk = cache.disk
        self._prefixes = prefixes
        self.preemptions = 0

    @property
    def may_admit(self) -> bool:
        """Whether a waiting sequence could get a slot. It may lack pages."""
        head = self._queue.head(self._slots.running)
        return head is not None and (self._slots.has_free or self._gives_way(head) is not None)

    def admit(self) -> None:
        """Give slots to waiting sequences in order, while their tokens fit the cache."""
        if not self.may_admit:
            return
        self._prefixes.publish()
        unclaimed = self._prefixes.unclaimed()
        while (head := self._queue.head(self._slots.running)) is not None:
            cost = self._prefixes.take(head, unclaimed) if self._slots.has_free else None
            if cost is not None:
                unclaimed -= cost
                self._start(head)
            elif (other := self._gives_way(head)) is not None:
                self.preempt(other)  # it waits behind `head` now
                unclaimed = self._prefixes.unclaimed()
            else:
                return

    def load_restored(self) -> None:
        """Give sequences the pages that the disk tier has read for them."""
        running = self._slots.running
        streams = any(one.generating and not one.paused for one in running)
        most = _LOADS if streams else self._pages.size
        for sequence in list(running):
            if sequence.restore is not None:
                most -= self._load(sequence, sequence.restore, most)

    def free_pages(self) -> None:
        """Preempt a sequence because output lacks pages. At least two sequences must run."""
        self.preempt(gives_pages(self._slots.running))

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's slot and pages, and let it wait at the place of its arrival.

        A paused sequence waits only when its caller resumes it.
        """
        self.release(sequence)
        sequence.computed = sequence.again = 0
        sequence.bound = False
        if not sequence.paused:
            self._queue.wait(sequence)
        self.preemptions += 1

    def release(self, sequence: Sequence) -> None:
        """Take slot and pages from a sequence. No step in flight may carry it."""
        if sequence.restore is not None:
            self._disk.cancel(sequence.restore)
        self._cached.publish(sequence.table, sequence.keys, sequence.computed)
        self._pages.release(sequence.table)
        sequence.leader = sequence.restore = sequence.awaited = None
        self._slots.take_back(sequence)

    def _gives_way(self, head: Sequence) -> Sequence | None:
        return gives_way(self._slots.running, head, shared=self._queue.shared)

    def _start(self, sequence: Sequence) -> None:
        """Give a waiting sequence a free slot."""
        self._queue.remove(sequence)
        sequence.total_at_start = sequence.total
        self._slots.give(sequence)

    def _load(self, sequence: Sequence, restore: Restore, most: int) -> int:
        """Give one sequence up to `most` pages from disk. Returns how many it got."""
        count = self._disk.load(sequence.table, restore, most)
        while (
            restore.ready
            and count < most
            and (idle := longest_idle(self._slots.running)) is not None
        ):
            self.preempt(idle)  # it holds the pages, and its caller may never ask again
            count += self._disk.load(sequence.table, restore, most - count)
        sequence.computed = self._disk.restored(sequence.table, restore, sequence.computed)
        if restore.ended and not restore.ready:
            sequence.restore = None
            if len(sequence.table.pages) * PAGE_TOKENS > sequence.computed:
                # It has pages, but no snapshot at their end, so it cannot continue there.
                self._prefixes.restart(sequence)
        return count
