"""Steps that are planned before the tokens of the step in flight are known.

Such a step continues sequences whose samplers do not need these tokens on the host, so the device
needs no host between the two steps. What the tokens decide comes later: whether a sequence has
ended, and what its text says. The step of a sequence that has ended is wasted, and nothing of it is
kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.embedding import EmbeddingParams
from heddle.state import PAGE_TOKENS
from heddle.step import UNKNOWN, Chunk

if TYPE_CHECKING:
    from heddle.cache.sequence_pages import SequencePages
    from heddle.scheduler.sequence import Sequence


def may_run_ahead(sequence: Sequence, chunk: Chunk) -> bool:
    """Whether the sequence can go on before the token after its chunk is known."""
    params = sequence.params
    if isinstance(params, EmbeddingParams) or sequence.driven or chunk.score is not None:
        return False
    needs_output = params.needs_known_output or sequence.rules.needs_known_output
    return chunk.sample and not (chunk.guesses or needs_output)


def chunk_ahead(sequence: Sequence, pages: SequencePages) -> Chunk | None:
    """The chunk of the token that the step in flight samples; None if there is no page for it.

    Windowed pages are given back between steps only, so there are no new ones ahead.
    """
    start = sequence.total
    if pages.has_windows and start % PAGE_TOKENS == 0:
        return None
    if not pages.grow(sequence.table, start + 1, saves=False):
        return None
    table, pictures = sequence.table, sequence.pictures
    return Chunk(
        sequence.slot,
        start,
        (UNKNOWN,),
        table.pages,
        sample=True,
        windows=table.windows,
        sight=None if pictures is None else pictures.sight(start, start + 1),
    )
