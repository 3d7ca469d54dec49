"""What a plan reads of a step: the rows of its chunks, and the results made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.executors.torch.sampling import Scorer

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from numpy.typing import NDArray

    from heddle.executors.cpu.batch import StateSum
    from heddle.executors.torch.program import Step
    from heddle.step import Chunk, Failed, Scored

    Float32 = NDArray[np.float32]


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


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a step.

    Attributes:
        logits: of each row to sample from.
        scored: outcomes of the chunks that score.
        kept: hidden states of each chunk that keeps some.
    """

    logits: dict[int, Float32]
    scored: tuple[Scored | Failed, ...]
    kept: tuple[Float32, ...]


def read(step: Step, chunks: Sequence[ChunkRows], sums: MutableMapping[int, StateSum]) -> Read:
    """Read the rows of a step. Adds hidden states to the sums of slots that pool."""
    scorers = [(Scorer(one.chunk), one) for one in chunks if one.chunk.score is not None]
    scorer_of = {row: scorer for scorer, one in scorers for row in one.scored}
    sampled = {row for one in chunks for row in one.sampled}
    logits = {}
    for row, values in step.logits(sorted({*sampled, *scorer_of})):
        if row in scorer_of:
            scorer_of[row].add(values)
        if row in sampled:
            logits[row] = values
    wanted = {row for one in chunks for row in (*one.pooled, *one.kept)}
    states = dict(step.states(sorted(wanted)))
    for one in chunks:
        for row in one.pooled:
            state_sum = sums[one.chunk.slot]
            state_sum.values += states[row].astype(np.float64)
            state_sum.count += 1
    kept = tuple(np.stack([states[row] for row in one.kept]) for one in chunks if one.kept)
    return Read(logits, tuple(scorer.result() for scorer, _ in scorers), kept)
