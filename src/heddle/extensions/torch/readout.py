"""Reads the rows of a step that its plan asks for, and makes results of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.chunk_rows import logit_rows, state_rows
from heddle.extensions.torch.scoring import Scorer
from heddle.extensions.torch.staging import sent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray

    from heddle.executors.cpu.batch import PooledStates
    from heddle.extensions.torch.chunk_rows import ChunkRows
    from heddle.extensions.torch.graphs import GraphStep
    from heddle.extensions.torch.program import Step
    from heddle.extensions.torch.scoring import Score
    from heddle.extensions.torch.tiles import RowsTile
    from heddle.step import Failed, Scored

    Float32 = NDArray[np.float32]


class SampledLogits:
    """The logits of the rows to sample from, on the device.

    Attributes:
        values: (rows, vocabulary) float32.
    """

    def __init__(self, tiles: Iterable[RowsTile]) -> None:
        numbers: list[int] = []
        values = []
        for some, logits in tiles:
            numbers += some
            values.append(logits)
        self.values = torch.cat(values) if values else torch.empty(0, 0)
        self._places = {number: place for place, number in enumerate(numbers)}

    def of(self, rows: Iterable[int]) -> torch.Tensor:
        """The logits of some rows, by their numbers in the step: (rows, vocabulary)."""
        places = [self._places[row] for row in rows]
        if places == [*range(len(self.values))]:
            return self.values
        return self.values[sent(np.array(places, np.int64), self.values.device)]

    def on_host(self, row: int) -> Float32:
        """The logits (vocabulary,) of a row, on the host."""
        values: Float32 = self.of([row])[0].cpu().numpy()
        return values


@dataclass(frozen=True, slots=True)
class Read:
    """The outputs that were read of a step.

    Attributes:
        logits: of the rows to sample from.
        scored: outcomes of the chunks that score.
        kept: hidden states of each chunk that keeps some.
    """

    logits: SampledLogits
    scored: tuple[Scored | Failed, ...]
    kept: tuple[Float32, ...]


def read(
    step: Step | GraphStep,
    chunks: Sequence[ChunkRows],
    sums: MutableMapping[int, PooledStates],
    score: Score,
) -> Read:
    """Read the rows of a step. Adds hidden states to those of slots that pool.

    `score` computes log probabilities of prompt tokens.
    """
    scorers = [(Scorer(one.chunk), one) for one in chunks if one.chunk.score is not None]
    scorer_of = {row: scorer for scorer, one in scorers for row in one.scored}
    logits = SampledLogits(_sampled(step, chunks, scorer_of, score))
    states = {
        row: state
        for rows, values in step.states(state_rows(chunks))
        for row, state in zip(rows, values.cpu().numpy(), strict=True)
    }
    for one in chunks:
        for row in one.pooled:
            sums[one.chunk.slot].add(states[row])
    kept = tuple(np.stack([states[row] for row in one.kept]) for one in chunks if one.kept)
    return Read(logits, tuple(scorer.result() for scorer, _ in scorers), kept)


def _sampled(
    step: Step | GraphStep,
    chunks: Sequence[ChunkRows],
    scorer_of: Mapping[int, Scorer],
    score: Score,
) -> Iterator[RowsTile]:
    """The logits of the rows to sample from. Scores the other rows on the way."""
    sampled = {row for one in chunks for row in one.sampled}
    for rows, values in step.logits(logit_rows(chunks)):
        scored = [place for place, row in enumerate(rows) if row in scorer_of]
        if scored:
            scorers = [scorer_of[rows[place]] for place in scored]
            scores = score(values[scored], [scorer.next() for scorer in scorers])
            for scorer, one, place in zip(scorers, scores, scored, strict=True):
                scorer.add(one, values[place])
        kept = [place for place, row in enumerate(rows) if row in sampled]
        if len(kept) == len(rows):
            yield rows, values
        elif kept:  # a list of numbers as an index would be a copy that waits for the device
            at = sent(np.array(kept, np.int64), values.device)
            yield [rows[place] for place in kept], values[at]
