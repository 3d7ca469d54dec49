"""Who computes what another one needs: requests that begin alike compute that part once.

A sequence whose tokens an older one is just computing follows it: it holds a slot, gets no tokens,
and takes over what the leader has computed once that is all they share, or the leader has gone.
Only older sequences are followed, so nobody waits in a circle, and the oldest follows no one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Tokens

    from heddle.scheduler.sequence import Sequence


def find_leader(
    sequence: Sequence, running: Iterable[Sequence], known: int
) -> tuple[Sequence | None, int]:
    """The older sequence that computes most of `sequence`'s tokens beyond the first `known`.

    `running` is in arrival order. Returns it, or None, and how many leading tokens they share, up
    to the first that `sequence` needs to compute itself.
    """
    leader, shared = None, known
    most = sequence.first_needed
    for older in running:
        if older is sequence or shared >= most:
            break
        if not _publishes_its_prompt(older) or _salt(older) != _salt(sequence):
            continue
        length = min(common_prefix(older.tokens, sequence.tokens, beyond=shared), most)
        if length > max(shared, older.computed):
            leader, shared = older, length
    return leader, shared


def leads_no_more(leader: Sequence, shared: int) -> bool:
    """Whether there is nothing to wait for: all is computed, or the leader publishes no more."""
    if leader.computed >= shared or leader.awaited is not None:
        return True
    return leader.table.cursor is None


def common_prefix(one: Tokens[int], other: Tokens[int], *, beyond: int) -> int:
    """How many leading tokens are the same if those are more than `beyond`, else 0."""
    if one[beyond : beyond + 1] != other[beyond : beyond + 1]:
        return 0
    low, high = 0, min(len(one), len(other))
    if high <= beyond:
        return 0
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # the first `low` are the same, the first `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low if low > beyond else 0


def _publishes_its_prompt(sequence: Sequence) -> bool:
    publishes = sequence.table.cursor is not None and sequence.awaited is None
    return publishes and not sequence.generating


def _salt(sequence: Sequence) -> str | None:
    return sequence.params.cache_salt
