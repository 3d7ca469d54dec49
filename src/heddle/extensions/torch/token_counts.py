"""How often each token of a sequence occurs, for penalties on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.extensions.torch.sampled_row import Ints


class TokenCounts:
    """How often each token occurs in the output, and in the window of the penalties."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int], window: int | None) -> None:
        """`window` is the number of latest tokens to count; None: all."""
        tokens = np.array([*prompt, *output], np.int64)
        known, places = np.unique(tokens, return_inverse=True)
        recent = places if window is None else places[max(0, len(places) - window) :]
        self._window = window
        self._size = len(known)
        self._places = {token: place for place, token in enumerate(known.tolist())}
        # Tokens, occurrences in the output and in the window, and all occurrences.
        self._table = np.zeros((4, 2 * self._size + 16), np.int64)
        self._table[:, : self._size] = [
            known,
            np.bincount(places[len(prompt) :], minlength=self._size),
            np.bincount(recent, minlength=self._size),
            np.bincount(places, minlength=self._size),
        ]

    def table(self) -> Ints:
        """Tokens, occurrences in the output, and in the window (3, n). A copy."""
        return self._table[:3, : self._size].copy()

    def table_with_unknown(self, tokens: Sequence[int]) -> Ints:
        """The table after one more token of the output than `tokens`: `UNKNOWN` (3, n + 1)."""
        window = self._window
        table = np.append(self.table(), [[UNKNOWN], [1], [int(window != 0)]], -1)
        if window and len(tokens) >= window:
            table[2, self._places[tokens[-window]]] -= 1
        return table

    def append(self, tokens: Sequence[int]) -> None:
        """Count the last of `tokens`, a token of the output."""
        token = tokens[-1]
        if token not in self._places:
            if self._size == self._table.shape[-1]:
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], -1)
            self._places[token] = self._size
            self._table[:, self._size] = token, 0, 0, 0
            self._size += 1
        self._table[1:, self._places[token]] += 1
        self._move_window(tokens, -1)

    def take_back(self, tokens: Sequence[int]) -> None:
        """Undo `append` of the last of `tokens`."""
        self._move_window(tokens, 1)
        place = self._places[tokens[-1]]
        self._table[1:, place] -= 1
        if self._table[3, place] == 0:  # it was appended last, so its column is the last
            del self._places[tokens[-1]]
            self._size -= 1

    def _move_window(self, tokens: Sequence[int], change: int) -> None:
        """Change the count of the token that the last token pushed out of the window."""
        if self._window is not None and len(tokens) > self._window:
            self._table[2, self._places[tokens[-1 - self._window]]] += change
