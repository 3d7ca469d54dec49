"""Assigns the outcomes of a step to sequences and to their drafters, and defines the scheduler's
events."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from heddle.step import Sampled

if TYPE_CHECKING:
    from heddle.outputs import FinishReason
    from heddle.scheduler.sequence import Sequence
    from heddle.step import Chunk, Outcome, StepResult


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
    scored = [s for s, chunk in carried if chunk.score is not None]
    pooled = [s for s, chunk in carried if chunk.pool and chunk.pool.complete]
    sequences = scored, _sampled(carried, result), pooled
    outcomes = result.scored, result.sampled, result.pooled
    planned = [[sequence.slot for sequence in kind] for kind in sequences]
    found = [[outcome.slot for outcome in kind] for kind in outcomes]
    if planned != found:
        raise ValueError(
            "a step result must hold an outcome for each request of the plan, in order; the slots"
            f" of its scores, tokens and embeddings are {found}, the plan's {planned}"
        )
    return list(zip(chain(*sequences), chain(*outcomes), strict=True))


def teach_drafters(
    carried: list[tuple[Sequence, Chunk]], outcomes: list[tuple[Sequence, Outcome]]
) -> dict[int, int]:
    """Tell the drafters which tokens were sampled.

    Returns how many guesses were wrong, by sequence id, for each sequence with guesses.
    """
    wrong = {sequence.id: chunk.guesses + 1 for sequence, chunk in carried if chunk.guesses}
    tokens: dict[int, list[int]] = {}
    for sequence, outcome in outcomes:
        if sequence.id in wrong:
            wrong[sequence.id] -= 1
        if isinstance(outcome, Sampled):
            tokens.setdefault(sequence.id, []).append(outcome.token)
    for sequence, chunk in carried:
        if sequence.guessing is not None and sequence.id in tokens:
            sequence.guessing.learn(tokens[sequence.id], chunk.guesses)
    return wrong


def _sampled(carried: list[tuple[Sequence, Chunk]], result: StepResult) -> list[Sequence]:
    """The sequences that sample, each as often as the result has outcomes for it.

    A chunk with guesses may have one outcome more for each guess.
    """
    sequences, index, slots = [], 0, [outcome.slot for outcome in result.sampled]
    for sequence, chunk in carried:
        if chunk.sample:
            end = index + 1
            while end <= index + chunk.guesses and slots[end : end + 1] == [sequence.slot]:
                end += 1
            sequences += [sequence] * (end - index)
            index = end
    return sequences
