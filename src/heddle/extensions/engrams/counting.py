"""Counts which tokens follow which n-grams, within a memory budget.

Tokens are collected until the budget is used. Then their n-grams are sorted, summed and written to
a temporary file, a run. The runs are merged at the end. The result does not depend on the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.engrams.rows import Packing, merged, summed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from heddle.extensions.engrams.rows import Rows

FAN_IN = 64
"""Runs that are merged at once. Each is an open file with a block in memory."""

_COPIES = 3
"""Copies of the rows that sorting and summing hold at once."""

_TOKEN_BYTES = 72
"""Bytes for each token beside the rows (measured): the token, its places, the order of the sort."""

_MERGE_COPIES = 14
"""Copies of the blocks that merging and grouping hold at once."""


class Counter:
    """Counts the n-grams of documents. No n-gram crosses the end of a document."""

    def __init__(self, folder: Path, orders: Sequence[int], vocabulary: int, memory: int) -> None:
        """Count n-grams of the lengths `orders`, with runs in `folder` and `memory` bytes."""
        self._folder = folder
        self._memory = memory
        self._packings = {order: Packing(order + 1, vocabulary) for order in orders}
        self._longest = max(orders)
        row = max(packing.row_bytes for packing in self._packings.values())
        self._capacity = max(1, memory // (_COPIES * row + _TOKEN_BYTES))
        self._pieces: list[NDArray[np.uint32]] = []
        self._starts = [0]
        self._filled = 0
        self._counted = 0
        self._runs: dict[int, list[Path]] = {order: [] for order in orders}
        self._made = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Take more tokens of the current document."""
        left = np.array(tokens, np.uint32)
        while len(left):
            room = self._counted + self._capacity - self._filled
            self._pieces.append(left[:room])
            self._filled += len(left[:room])
            left = left[room:]
            if self._filled == self._counted + self._capacity:
                self._spill()

    def end_document(self) -> None:
        """Begin another document."""
        if self._starts[-1] != self._filled:
            self._starts.append(self._filled)

    def rows(self, order: int) -> Iterator[Rows]:
        """All n-grams of one length with their counts, in order. It takes no more tokens."""
        if self._filled > self._counted:
            self._spill()
        runs, packing = self._runs[order], self._packings[order]
        while len(runs) > FAN_IN:
            several, runs = runs[:FAN_IN], runs[FAN_IN:]
            runs.append(self._write_run(self._merge(several, packing)))
        yield from self._merge(runs, packing)

    def packing(self, order: int) -> Packing:
        """How the rows of one length are packed."""
        return self._packings[order]

    @property
    def runs(self) -> int:
        """The number of runs written so far."""
        return self._made

    def _spill(self) -> None:
        """Write a run of each length, and keep the last tokens for n-grams that go on."""
        tokens = np.concatenate(self._pieces)
        places = np.arange(len(tokens))
        begins = np.repeat(self._starts, np.diff([*self._starts, len(tokens)]))
        for order, packing in self._packings.items():
            # Places of the tokens that follow an n-gram. Those before `_counted` are in a run.
            followers = places[(places - order >= begins) & (places >= self._counted)]
            columns = [tokens[followers - distance] for distance in range(order, -1, -1)]
            rows = packing.pack(columns)
            self._runs[order].append(self._write_run(iter([summed(rows)])))
        kept = min(self._longest, len(tokens) - self._starts[-1])
        self._pieces = [tokens[len(tokens) - kept :]]
        self._starts, self._filled, self._counted = [0], kept, kept

    def _write_run(self, blocks: Iterator[Rows]) -> Path:
        path = self._folder / f"run-{self._made}"
        self._made += 1
        with path.open("wb") as file:
            for block in blocks:
                file.write(np.ascontiguousarray(block).data)
        return path

    def _merge(self, runs: Sequence[Path], packing: Packing) -> Iterator[Rows]:
        """The rows of these runs, which are deleted at the end."""
        share = self._memory // (max(1, len(runs)) * _MERGE_COPIES)
        block = max(1, share // packing.row_bytes)
        yield from merged([_read_run(run, packing, block) for run in runs])
        for run in runs:
            run.unlink()


def _read_run(path: Path, packing: Packing, rows: int) -> Iterator[Rows]:
    """The rows of a run, in blocks of at most `rows`."""
    with path.open("rb") as file:
        while raw := file.read(rows * packing.row_bytes):
            yield np.frombuffer(raw, np.uint64).reshape(-1, packing.words + 1)
