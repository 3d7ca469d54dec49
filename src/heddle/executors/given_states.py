"""The hidden states that a plan gives to a prediction head, as one array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from heddle.step import States, StepPlan


def given_states(plan: StepPlan) -> States:
    """The hidden states (T, width) that a plan gives to a prediction head.

    Raises:
        ValueError: a chunk has not a state for each token.
    """
    for chunk in plan.chunks:
        if chunk.states is None or len(chunk.states) != len(chunk.tokens):
            raise ValueError("a chunk of a prediction head needs a state for each token")
    states = [chunk.states for chunk in plan.chunks if chunk.states is not None]
    return np.ascontiguousarray(np.concatenate(states), np.float32)
