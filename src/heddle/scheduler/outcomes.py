"""Whose is what an executor read, and what the scheduler makes known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence
    from heddle.step import Chunk, Outcome, StepResult
    from heddle.types import FinishReason


class Event(NamedTuple):
    """Something was read from a sequence, or it failed. `finish` is set when that was its end.

    `outcome` is None where it ends because all is computed, and nothing but the scores before was
    wanted.
    """

    sequence: Sequence
    outcome: Outcome | None
    finish: FinishReason | None


def outcomes_of(
    carried: list[tuple[Sequence, Chunk]], result: StepResult
) -> list[tuple[Sequence, Outcome]]:
    """What was read from each sequence; of one sequence, scores before the token after them.

    Raises:
        ValueError: the result does not answer the plan.
    """
    kinds: tuple[tuple[tuple[Outcome, ...], list[Sequence]], ...] = (
        (result.scored, [s for s, chunk in carried if chunk.score is not None]),
        (result.sampled, [s for s, chunk in carried if chunk.sample]),
        (result.pooled, [s for s, chunk in carried if chunk.pool and chunk.pool.complete]),
    )
    pairs: list[tuple[Sequence, Outcome]] = []
    for outcomes, sequences in kinds:
        if [outcome.slot for outcome in outcomes] != [s.slot for s in sequences]:
            raise ValueError("a step result must hold one entry per thing to be read, in order")
        pairs += zip(sequences, outcomes, strict=True)
    return pairs
