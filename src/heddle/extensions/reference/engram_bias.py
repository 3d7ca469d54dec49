"""The reference of the bias of engram tables. The reference sampler adds it to the logits."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.engrams.bias import EngramBias

_EPSILON = 1e-10


def engram_bias(bias: EngramBias | None, tokens: Sequence[int]) -> dict[int, float]:
    """The bias of the token after `tokens`, prompt and output, by token.

    p is the weighted mean of the probabilities that the tables give a token. Tables that predict
    nothing do not count. The bias is alpha * (ln(p + eps) - ln eps), which is 0 for p = 0, so it is
    one rule for the whole vocabulary. The literal form, alpha * ln(p + eps), leaves the tokens that
    are not predicted alone, so it lowers the predicted ones against all others.
    """
    if bias is None or _reasons(bias, tokens):
        return {}
    masses: defaultdict[int, float] = defaultdict(float)
    weights = 0.0
    for table, weight in bias.tables:
        predictions = table.predict(tokens)
        weights += weight if predictions else 0
        for token, probability in predictions:
            masses[token] += weight * probability
    lift = 0.0 if bias.literal else math.log(_EPSILON)
    return {
        token: bias.alpha * (math.log(mass / weights + _EPSILON) - lift)
        for token, mass in masses.items()
    }


def _reasons(bias: EngramBias, tokens: Sequence[int]) -> bool:
    """Whether the last mark of reasoning among the tokens is an opening one."""
    if not bias.opening:
        return False
    last = {mark: _last(mark, tokens) for mark in (bias.opening, bias.closing)}
    return last[bias.opening] > last.get(bias.closing, -1)


def _last(mark: tuple[int, ...], tokens: Sequence[int]) -> int:
    """The place at which the last occurrence of `mark` ends; -1 if there is none."""
    size = len(mark)
    ends = range(len(tokens), size - 1, -1)
    return next((end for end in ends if tuple(tokens[end - size : end]) == mark), -1)
