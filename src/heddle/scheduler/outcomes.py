"""Assigns the outcomes of a step to sequences, and defines the scheduler's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence
    from heddle.step import Chunk, Outcome, StepResult
    from heddle.types import FinishReason


class TokenEvent(NamedTuple):
    """A sequence got an outcome of a step, or has ended. `finish` is set if it has ended.

    `outcome` is None if the sequence ends when all its tokens are computed, and its caller asked
    only for scores, which earlier events had.
    """

    sequence: Sequence
    outcome: Outcome | None
    finish: FinishReason | None


def outcomes_of(
    carried: list[tuple[Sequence, Chunk]], result: StepResult
) -> list[tuple[Sequence, Outcome]]:
    """The outcomes of a step, each with its sequence.

    The scores of a sequence come before the token that the same step samples for it.

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
            raise ValueError(
                "a step result must hold one outcome for each request of the plan, in order; its"
                f" slots are {[outcome.slot for outcome in outcomes]}, the plan's"
                f" {[s.slot for s in sequences]}"
            )
        pairs += zip(sequences, outcomes, strict=True)
    return pairs
