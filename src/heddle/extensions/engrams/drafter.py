"""Guesses from the engram tables of a request: the likeliest token after the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.engrams.bias import EngramBias
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from heddle.scheduler.sequence import Sequence

_LONGEST = 16
"""Most tokens of an n-gram in a table."""
_LEAST_PROBABILITY = 0.3
"""A less likely token ends the guesses."""


class EngramDrafter:
    """Guesses from the tables of one request; see `Drafter`.

    Several tables count by their weights, as in the bias. The grade is 15 times the probability of
    the first guess.
    """

    def __init__(self, bias: EngramBias) -> None:
        self._tables = bias.tables
        self._last: list[int] = []

    def append(self, tokens: Many[int]) -> None:
        """The text continues with `tokens`."""
        self._last = [*self._last, *tokens[-_LONGEST:]][-_LONGEST:]

    def guess(self, most: int) -> tuple[Many[int], int]:
        """Up to `most` tokens that may follow, and the grade of the first."""
        text, first = list(self._last), 0.0
        for _ in range(most):
            token, probability = self._likeliest(text)
            if probability < _LEAST_PROBABILITY:
                break
            first = first or probability
            text.append(token)
        return text[len(self._last) :], int(15 * first)

    def _likeliest(self, text: Many[int]) -> tuple[int, float]:
        """The likeliest next token, the lowest among equals, and its probability."""
        merged: dict[int, float] = {}
        weights = 0.0
        for table, weight in self._tables:
            if found := table.predict(text):
                weights += weight
                for token, probability in found:
                    merged[token] = merged.get(token, 0.0) + weight * probability
        if not merged:
            return 0, 0.0
        token = min(merged, key=lambda one: (-merged[one], one))
        return token, merged[token] / weights


def drafter(sequence: Sequence) -> EngramDrafter | None:
    """A drafter if the sequence's request names tables, else None."""
    assert isinstance(sequence.params, SamplingParams), "an embedding has no output"
    bias = sequence.rules.of(EngramBias)
    return None if bias is None else EngramDrafter(bias)
