"""Makes outcomes (`heddle.step`) from the scores and hidden states of a native step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.executors.failures import non_finite
from heddle.outputs import PromptLogprob
from heddle.step import Failed, Pooled, Scored

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from heddle import _native
    from heddle.executors.cpu.batch import StateSum
    from heddle.step import StepPlan


def scored(plan: StepPlan, scores: Sequence[_native.Score]) -> tuple[Scored | Failed, ...]:
    """Logprobs of each chunk that scores. `scores` has the scores of all chunks, in order."""
    results: list[Scored | Failed] = []
    rest = iter(scores)
    for chunk in plan.chunks:
        if chunk.score is None:
            continue
        own = list(zip(chunk.score.targets, rest, strict=False))
        if any(rank == 0 for _, (_, rank, _) in own):
            results.append(Failed(chunk.slot, non_finite(chunk)))
            continue
        logprobs = (PromptLogprob(token, *score[:2], tuple(score[2])) for token, score in own)
        results.append(Scored(chunk.slot, tuple(logprobs)))
    return tuple(results)


def pooled(plan: StepPlan, sums: MutableMapping[int, StateSum]) -> tuple[Pooled | Failed, ...]:
    """Embeddings of complete sequences. Removes their sums."""
    results: list[Pooled | Failed] = []
    for chunk in plan.chunks:
        if chunk.pool is None or not chunk.pool.complete:
            continue
        vector = sums.pop(chunk.slot).mean()
        if vector is None:
            results.append(Failed(chunk.slot, non_finite(chunk)))
        else:
            results.append(Pooled(chunk.slot, vector))
    return tuple(results)
