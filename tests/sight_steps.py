"""Steps of an executor with a picture of a tiny model with eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tiny_eyes_base import BEFORE

from heddle.pictures import Look, Pictures, Span
from heddle.step import Chunk, Scoring, StepPlan, WindowPages
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiny_eyes_base import TinyEyes


def pictures_of(model: TinyEyes, rows: np.ndarray, *, has_axes: bool) -> Pictures:
    """The picture of the model's prompt, whose tokens see one another in Gemma 3."""
    look = Look(1 << 30, len(rows), (), rows=rows)
    places = None
    if has_axes:
        places = np.repeat(np.arange(len(model.prompt()), dtype=np.int32)[:, None], 3, axis=1)
        own = places[BEFORE : BEFORE + len(rows)]
        own[:, 0] = BEFORE
        numbers = np.arange(len(rows))
        own[:, 1], own[:, 2] = BEFORE + numbers // 2, BEFORE + numbers % 2
        after = places[BEFORE + len(rows) :]
        after -= after[:1] - own.max() - 1
    return Pictures([Span(BEFORE, look, 0, len(rows))], places, whole=model.name == "gemma3")


def pages(executor: Any, slot: int) -> dict[str, Any]:
    """Two pages of each group for a slot."""
    own = [2 * slot, 2 * slot + 1]
    return {"pages": own, "windows": [WindowPages(0, own) for _ in executor.memory.windows]}


def scored(
    executor: Any,
    tokens: Sequence[int],
    seen: Pictures,
    cuts: Sequence[int] = (),
    company: Sequence[Chunk] = (),
) -> list[Any]:
    """Log probabilities after each token but the last, of a sequence in slot 1."""
    found: list[Any] = []
    for first, last in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        score = Scoring(0, tokens[first + 1 : last + 1], executor.shape.vocabulary)
        chunk = Chunk(
            *(1, first, tokens[first:last]),
            sample=False,
            score=score,
            sight=seen.sight(first, last),
            **pages(executor, 1),
        )
        clears = (0, 1) if executor.memory.fixed and not first else ()
        plan = StepPlan((), (*company, chunk), clears=clears)
        found += execute(executor, plan).scored[-1].scores
    return found


def values(scores: Sequence[Any]) -> np.ndarray:
    """Log probabilities (tokens, vocabulary) by token id."""
    return np.array([[logprob for _, logprob in sorted(one.top)] for one in scores])
