"""Who computes what another one needs: requests that begin alike compute that part once.

A sequence whose tokens an older one is just computing follows it: it holds a slot, gets no tokens,
and takes over what the leader has computed once that is all they share, or the leader has gone.
Only older sequences are followed, so nobody waits in a circle, and the oldest follows no one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.cache.radix import common_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        if older.tokens[shared : shared + 1] != sequence.tokens[shared : shared + 1]:
            continue  # quick: they share no more than is known
        length = min(common_prefix(older.tokens, sequence.tokens), most)
        if length > max(shared, older.computed):
            leader, shared = older, length
    return leader, shared


def leads_no_more(leader: Sequence, shared: int) -> bool:
    """Whether there is nothing to wait for: all is computed, or the leader publishes no more."""
    if leader.computed >= shared or leader.awaited is not None:
        return True
    return leader.table.cursor is None


def _publishes_its_prompt(sequence: Sequence) -> bool:
    publishes = sequence.table.cursor is not None and sequence.awaited is None
    return publishes and not sequence.generating


def _salt(sequence: Sequence) -> str | None:
    return sequence.params.cache_salt
