"""Chooses the running sequence that gives way: to a waiting one, or because output lacks pages.

Three rules say who gives way to the first of the queue, in this order:

1. A paused sequence gives way, the longest idle first. Its caller may never ask again.
2. A sequence gives way to one with a lower `priority`, the last in order first.
3. A client gives way to one that has fewer slots in the same class. If the difference is at least
   two slots, its youngest sequence gives way at once. If it is one slot and the other client was
   served less, a sequence gives way after SLICE tokens of output: clients take turns on few slots.

Rule 3 cannot swap two clients back and forth. After a swap for a difference of two or more, the
first client still has at least as many slots as the second. A swap for a difference of one is paid
by SLICE new tokens of the sequence that gives way, so every stay in a slot makes progress.

If output lacks pages, a paused sequence gives them up, else the last class does. In this class it
is the youngest sequence of the client with the most slots, and of the one that was served most
among equals. It is never the first in order, so the first in order always advances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.scheduler.queue import slots_by_account

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Ordered

    from heddle.scheduler.sequence import Sequence

SLICE = 128
"""Tokens of output after which a sequence may lose its only slot more to another client. Resuming
costs little, because its pages stay in the prefix cache as long as there is memory."""


def longest_idle(running: Iterable[Sequence]) -> Sequence | None:
    """The paused sequence that has idled longest with a slot; None if there is none."""
    idle = (sequence for sequence in running if sequence.paused)
    return min(idle, key=lambda sequence: sequence.turn, default=None)


def gives_way(running: Ordered[Sequence], head: Sequence, *, shared: bool) -> Sequence | None:
    """The running sequence that gives way to `head`; None if `head` has to wait.

    Args:
        running: sequences with slots, in order.
        head: the first sequence of the queue.
        shared: whether several clients share a class.
    """
    idle = longest_idle(running)
    if idle is not None:
        return idle
    if running and running[-1].priority > head.priority:
        return running[-1]
    return _of_larger_client(running, head) if shared else None


def gives_pages(running: Ordered[Sequence]) -> Sequence:
    """The running sequence that gives up its pages.

    `running` is in order and has two sequences or more.
    """
    idle = longest_idle(running)
    if idle is not None:
        return idle
    last, slots = running[-1].priority, slots_by_account(running)
    return max(
        (one for one in running[1:] if one.priority == last),
        key=lambda one: (slots[id(one.account)], one.account.service, one.rank),
    )


def _of_larger_client(running: Ordered[Sequence], head: Sequence) -> Sequence | None:
    """The youngest sequence that rule 3 lets give way to `head`; None if there is none."""
    slots = slots_by_account(running)
    fair = slots[id(head.account)] + 1
    for sequence in reversed(running):
        held = slots[id(sequence.account)]
        if sequence.priority != head.priority or held < fair:
            continue
        if held > fair or (
            sequence.account.service > head.account.service
            and sequence.total - sequence.total_at_start >= SLICE
        ):
            return sequence
    return None
