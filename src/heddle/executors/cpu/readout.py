"""Makes outcomes (`heddle.step`) from the scores and hidden states of a native step."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from heddle.executors.failures import non_finite
from heddle.outputs import PromptLogprob
from heddle.step import Failed, Pooled, Scored

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from heddle import _native
    from heddle.executors.cpu.batch import PooledStates
    from heddle.executors.cpu.samplers import Row
    from heddle.step import StepPlan


def scored(
    plan: StepPlan, scores: Sequence[_native.Score], row: Callable[[int], Row | None]
) -> tuple[Scored | Failed, ...]:
    """Logprobs of each chunk that scores. `scores` has the scores of all chunks, in order.

    `row` gets the logits of a score by its number; None: they are not kept.
    """
    results: list[Scored | Failed] = []
    end = 0
    for chunk in plan.chunks:
        if chunk.score is None:
            continue
        begin, end = end, end + len(chunk.score.targets)
        own = list(zip(chunk.score.targets, scores[begin:end], strict=True))
        bad = [number for number, (_, (_, rank, _)) in enumerate(own, begin) if rank == 0]
        if bad:  # the last row is kept the longest
            results.append(Failed(chunk.slot, non_finite(chunk, row=row(bad[-1]))))
            continue
        logprobs = (PromptLogprob(token, *score[:2], tuple(score[2])) for token, score in own)
        results.append(Scored(chunk.slot, tuple(logprobs)))
    return tuple(results)


def pooled(plan: StepPlan, sums: MutableMapping[int, PooledStates]) -> tuple[Pooled | Failed, ...]:
    """Embeddings of complete sequences. Removes their states."""
    results: list[Pooled | Failed] = []
    for chunk in plan.chunks:
        if chunk.pool is None or not chunk.pool.complete:
            continue
        vector = sums.pop(chunk.slot).vector()
        if not np.isfinite(vector).all():
            results.append(Failed(chunk.slot, non_finite(chunk, row=vector)))
        else:
            results.append(Pooled(chunk.slot, array("f", vector.astype(np.float32).tobytes())))
    return tuple(results)
