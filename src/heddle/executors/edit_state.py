"""One sequence's places in its grammar and its logits processors, and the edits that follow."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from heddle.token_rules import LogitEdit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.token_rules import TokenRules


class EditState:
    """The places of one output. For one thread at a time."""

    def __init__(self, rules: TokenRules, prompt: Sequence[int]) -> None:
        """The places of an empty output. Raises whatever a processor raises."""
        self._grammar = None if rules.grammar is None else rules.grammar.begin()
        self._processors = [one.begin(prompt) for one in rules.processors]

    def next_edit(self, tokens: Sequence[int]) -> LogitEdit:
        """Append `tokens` to the output, and return the edit of the next token's logits.

        Raises:
            HeddleError: the request must end with this error.
            ValueError: a bias is no row of numbers, or is not below infinity.
        """
        mask = b"" if self._grammar is None else self._grammar.next_mask(tokens)
        if not self._processors:
            return LogitEdit(mask)
        biases = [processor.next_bias(tokens) for processor in self._processors]
        return LogitEdit(mask, _total([bias for bias in biases if bias is not None]))

    def rewind(self, count: int) -> bool:
        """Take back the last `count` tokens. False: it cannot, and must not be used again."""
        rewound = [processor.rewind(count) for processor in self._processors]
        return all(rewound) and (self._grammar is None or self._grammar.rewind(count))


def _total(biases: Sequence[NDArray[np.float32]]) -> bytes:
    """The sum of biases, as :attr:`heddle.token_rules.LogitEdit.bias`, in order of processors."""
    if not biases:
        return b""
    total = reduce(_sum, (np.asarray(bias, np.float32) for bias in biases))
    if total.ndim != 1 or not (total < np.inf).all():  # NaN is not either
        raise ValueError(
            f"a bias must be a row of numbers below infinity, got shape {total.shape} with the"
            f" largest {total.max(initial=-np.inf)}"
        )
    return total.tobytes()


def _sum(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
