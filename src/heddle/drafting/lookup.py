"""Guesses from the text itself: what followed earlier, when the text read as it does now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle import _native

if TYPE_CHECKING:
    from collections.abc import Sequence


class LookupDrafter:
    """Prompt look-up over the prompt and the output of one sequence; see `Drafter`.

    The grade is the number of tokens that occurred earlier, less one: 1 to 15.
    """

    def __init__(self) -> None:
        self._lookup = _native.Lookup()

    def append(self, tokens: Sequence[int]) -> None:
        """The text continues with `tokens`."""
        self._lookup.append(np.array(tokens, np.int32))

    def guess(self, most: int) -> tuple[Sequence[int], int]:
        """Up to `most` tokens that may follow, and the grade of the first."""
        guesses, same = self._lookup.guess(most)
        return guesses, max(same - 1, 0)
