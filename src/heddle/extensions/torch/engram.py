"""The bias of engram tables on the logits of a sequence, for samplers on the device.

The host looks up what the tables predict. Definition:
`heddle.extensions.reference.engram_bias.engram_bias`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.engrams.bias import EngramBias
    from heddle.extensions.torch.sampled_row import Biases

_EPSILON = 1e-10


class EngramHistory:
    """Follows the marks of reasoning in a sequence, and computes its bias."""

    def __init__(self, bias: EngramBias, tokens: Sequence[int]) -> None:
        self._bias = bias
        self._tables = bias.native_tables()
        self._longest = max(table.orders[1] for table, _ in self._tables)
        self._reasons = [False]  # after each number of tokens
        if bias.opening:
            for end in range(1, len(tokens) + 1):
                self._follow(tokens, end)

    def append(self, tokens: Sequence[int]) -> None:
        """Follow the last of `tokens`."""
        if self._bias.opening:
            self._follow(tokens, len(tokens))

    def take_back(self) -> None:
        """Undo the last `append`."""
        if self._bias.opening:
            self._reasons.pop()

    def biases(self, tokens: Sequence[int]) -> Biases:
        """Tokens, each once, and what to add to their logits after `tokens`."""
        masses: defaultdict[int, float] = defaultdict(float)
        weights = 0.0
        latest = tokens[-self._longest :]
        for table, weight in () if self._reasons[-1] else self._tables:
            predictions = table.predict(latest)
            weights += weight if predictions else 0.0
            for token, probability in predictions:
                masses[token] += weight * probability
        lift = 0.0 if self._bias.literal else math.log(_EPSILON)
        scores = [math.log(mass / weights + _EPSILON) - lift for mass in masses.values()]
        return np.array([*masses], np.int64), np.array(
            [self._bias.alpha * score for score in scores], np.float32
        )

    def _follow(self, tokens: Sequence[int], end: int) -> None:
        """Note whether reasoning is open after the first `end` tokens. The last mark decides."""
        reasons = self._reasons[-1]
        for mark, opens in ((self._bias.opening, True), (self._bias.closing, False)):
            if mark and tokens[end - 1] == mark[-1] and _ends_with(tokens, end, mark):
                reasons = opens
        self._reasons.append(reasons)


def _ends_with(tokens: Sequence[int], end: int, mark: Sequence[int]) -> bool:
    return len(mark) <= end and [*tokens[end - len(mark) : end]] == [*mark]
