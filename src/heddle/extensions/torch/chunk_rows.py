"""The rows of a step that its plan reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.step import Chunk


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of a step, by number, that the plan reads of a chunk."""

    chunk: Chunk
    sampled: range
    scored: range
    pooled: range
    kept: range


def rows_of(chunks: Sequence[Chunk]) -> list[ChunkRows]:
    """The rows of each chunk. The chunks' tokens are the rows of the step, in order."""
    found, begin = [], 0
    for chunk in chunks:
        end = begin + len(chunk.tokens)
        score, pool = chunk.score, chunk.pool
        first = end if score is None else begin + score.first
        found.append(
            ChunkRows(
                chunk,
                sampled=range(end - chunk.guesses - 1 if chunk.sample else end, end),
                scored=range(first, first + (0 if score is None else len(score.targets))),
                pooled=range(end if pool is None else begin + pool.first, end),
                kept=range(end - chunk.keep_states, end),
            )
        )
        begin = end
    return found


def logit_rows(chunks: Sequence[ChunkRows]) -> list[int]:
    """The rows whose logits the plan reads, in order."""
    return sorted({row for one in chunks for row in (*one.sampled, *one.scored)})


def state_rows(chunks: Sequence[ChunkRows]) -> list[int]:
    """The rows whose hidden states the plan reads, in order."""
    return sorted({row for one in chunks for row in (*one.pooled, *one.kept)})
