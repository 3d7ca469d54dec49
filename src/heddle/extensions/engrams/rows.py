"""Counted n-grams as rows of numbers: packing, sorting, summing, and merging sorted rows.

A row is an n-gram, the token that follows it, and a count. Its n + 1 tokens are packed into one or
more words of 64 bits, the first token in the highest bits, so that rows sort as their tokens do.
Rows are an array (rows, words + 1), uint64; the last column is the count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Packing:
    """How `width` tokens of a vocabulary fill words of 64 bits. A token never crosses words.

    Attributes:
        width: tokens of a row, n + 1.
        vocabulary: the number of token ids.
    """

    width: int
    vocabulary: int

    @property
    def bits(self) -> int:
        """Bits of a token."""
        return max(1, (self.vocabulary - 1).bit_length())

    @property
    def words(self) -> int:
        """Words of a row, without its count."""
        return -(-self.width // (64 // self.bits))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its count."""
        return 8 * (self.words + 1)

    def pack(self, columns: Sequence[NDArray[np.uint32]]) -> Rows:
        """Rows with the count 1. `columns`: for each place of a row, its tokens (rows,)."""
        rows = np.zeros((len(columns[0]), self.words + 1), np.uint64)
        rows[:, -1] = 1
        for place, column in enumerate(columns):
            word, shift = self._place(place)
            rows[:, word] |= column.astype(np.uint64) << shift
        return rows

    def unpack(self, rows: Rows) -> NDArray[np.uint32]:
        """The tokens of rows, (rows, width)."""
        tokens = np.empty((len(rows), self.width), np.uint32)
        mask = np.uint64((1 << self.bits) - 1)
        for place in range(self.width):
            word, shift = self._place(place)
            tokens[:, place] = (rows[:, word] >> shift) & mask
        return tokens

    def _place(self, place: int) -> tuple[int, np.uint64]:
        each = 64 // self.bits
        return place // each, np.uint64((each - 1 - place % each) * self.bits)


def summed(rows: Rows) -> Rows:
    """The rows in order, equal ones as one row with the sum of their counts."""
    rows = rows[np.lexsort(rows[:, -2::-1].T)]
    starts = group_starts(rows[:, :-1])
    result = rows[starts]
    if len(rows):
        result[:, -1] = np.add.reduceat(rows[:, -1], starts)
    return result


def group_starts(keys: NDArray[np.generic]) -> NDArray[np.int64]:
    """The indices at which runs of equal rows begin."""
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return np.flatnonzero(new)


def merged(sources: Sequence[Iterator[Rows]]) -> Iterator[Rows]:
    """The rows of all sources in order, with counts of equal rows added.

    The rows of each source ascend and are distinct. The memory that this takes is that of one block
    of each source, a few times.
    """
    active = list(sources)
    heads: list[Rows] = [_next_block(source) for source in active]
    while True:
        alive = [index for index, head in enumerate(heads) if len(head)]
        active, heads = [active[i] for i in alive], [heads[i] for i in alive]
        if not heads:
            return
        # Rows up to the least of the blocks' last rows are all in the blocks.
        limit = min(head[-1, :-1].tolist() for head in heads)
        cuts = [_rows_up_to(head, limit) for head in heads]
        parts = [head[:cut] for head, cut in zip(heads, cuts, strict=True)]
        yield summed(np.concatenate(parts)) if len(parts) > 1 else parts[0]
        for index, cut in enumerate(cuts):
            rest = heads[index][cut:]
            heads[index] = rest if len(rest) else _next_block(active[index])


def _next_block(source: Iterator[Rows]) -> Rows:
    """The next block that has rows; an empty one at the end."""
    return next((block for block in source if len(block)), np.empty((0, 2), np.uint64))


def _rows_up_to(rows: Rows, limit: Sequence[int]) -> int:
    """How many of the ordered rows are not above `limit`."""
    low, high = 0, len(rows)
    for word, value in enumerate(limit):
        column = rows[low:high, word]
        left, right = (
            int(np.searchsorted(column, np.uint64(value), side)) for side in ("left", "right")
        )
        low, high = low + left, low + right
    return high
