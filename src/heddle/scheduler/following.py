"""Following: sequences that share a prefix compute it once.

A sequence follows an older sequence, its leader, that is computing tokens of their shared prefix.
A follower holds a slot and computes nothing. It waits until the leader has computed all shared
tokens, or stops computing them. Then it takes the leader's prefix from the prefix cache. Sequences
follow only sequences that come before them in order, so waits cannot form a circle, and the first
sequence never waits.
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
    """Find the older sequence that computes the most tokens of `sequence` beyond `known`.

    `known` is the length of the prefix hit of `sequence`.

    `running` is in order. A sequence never follows one of a later class, which may not advance.

    Returns:
        The leader, or None, and the number of leading tokens that both share. The number excludes
        tokens that `sequence` must compute itself.
    """
    leader, shared = None, known
    most = sequence.first_needed
    for older in running:
        if older is sequence or shared >= most or older.priority > sequence.priority:
            break
        if not _publishes_its_prompt(older) or older.scope != sequence.scope:
            continue
        if older.keys[shared : shared + 1] != sequence.keys[shared : shared + 1]:
            continue  # a quick test: they share only the known tokens
        length = min(common_prefix(older.keys, sequence.keys), most)
        if length > max(shared, older.computed):
            leader, shared = older, length
    return leader, shared


def is_wait_over(leader: Sequence, shared: int) -> bool:
    """Whether a follower can continue.

    It can if the leader has computed all `shared` tokens, waits for a mask, or publishes nothing
    more.
    """
    if leader.computed >= shared or leader.awaited is not None:
        return True
    return leader.table.cursor is None


def _publishes_its_prompt(sequence: Sequence) -> bool:
    publishes = sequence.table.cursor is not None and sequence.awaited is None
    return publishes and not sequence.generating
