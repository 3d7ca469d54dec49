"""A plan as tensors: the step's tokens, their places in pages, and tiles of queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.executors.given_states import given_states
from heddle.executors.serving import page_tables
from heddle.executors.torch.tiles import TILE, padded
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.step import Chunk, StepPlan

SPLIT = 256
"""Positions of a split of attention."""

_SPLIT_PAGES = SPLIT // PAGE_TOKENS


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """What the queries of all tiles see of one split.

    Attributes:
        tiles: indices (A,) of the tiles with a query that sees a position.
        visible: (A, SPLIT, TILE) whether a query sees a position.
    """

    tiles: torch.Tensor
    visible: torch.Tensor


@dataclass(slots=True, eq=False)
class Layout:
    """A step of T tokens, in the order of the chunks, padded to whole tiles.

    A tile has up to `TILE` queries of one chunk. Its place among the tiles has no effect on them.

    Attributes:
        device: where the tensors are.
        count: T, the tokens without padding.
        tokens, positions: (padded T,) int64. Padding is token 0 at position 0.
        stored: for each group, the place (T,) of each token in the group's pages.
        tables: for each group, the pages of each tile by page number: (tiles, numbers).
        queries: position of each tile's queries (tiles, TILE); -1: padding.
        ends: (tiles,) positions of each tile's sequence.
        tile_rows: the token (tiles * TILE,) of each query; 0 for padding.
        token_queries: the query (padded T,) of each token; 0 for padding.
        runs: the rows of each chunk, and the chunk.
        splits: number of splits that hold the positions of the longest sequence.
        states: (padded T, width) hidden states for a prediction head, or None.
    """

    device: torch.device
    count: int
    tokens: torch.Tensor
    positions: torch.Tensor
    stored: list[torch.Tensor]
    tables: list[torch.Tensor]
    queries: torch.Tensor
    ends: torch.Tensor
    tile_rows: torch.Tensor
    token_queries: torch.Tensor
    runs: list[tuple[slice, Chunk]]
    splits: int
    states: torch.Tensor | None = None
    _masks: dict[tuple[int, int, bool], Masks] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: StepPlan, groups: int, device: torch.device, *, has_states: bool) -> Layout:
        """Lay out a plan for a memory of `groups` groups.

        Raises:
            ValueError: a chunk lacks hidden states that a prediction head reads.
        """
        made = _Lists(plan.chunks, groups)
        count = len(made.tokens)
        rows = padded(count)

        def tensor(values: Sequence[int] | NDArray[np.int64], length: int = 0) -> torch.Tensor:
            array = np.zeros(max(length, len(values)), np.int64)
            array[: len(values)] = values
            return torch.from_numpy(array).to(device)

        states = None
        if has_states:
            given = given_states(plan)
            filled = np.zeros((rows, given.shape[1]), np.float32)
            filled[:count] = given
            states = torch.from_numpy(filled).to(device)
        return cls(
            device,
            count,
            tensor(made.tokens, rows),
            tensor(made.positions, rows),
            [tensor(places) for places in made.stored],
            [torch.from_numpy(_joined(tables)).to(device) for tables in made.tables],
            tensor(made.queries).reshape(-1, TILE),
            tensor(made.ends),
            tensor(made.tile_rows),
            tensor(made.token_queries, rows),
            made.runs,
            -(-max(made.ends) // SPLIT),
            states,
        )

    def masks(self, split: int, window: int, *, causal: bool) -> Masks:
        """What queries see of the split with this number. All layers of a step share the result."""
        key = split, window, causal
        if key not in self._masks:
            seen = torch.arange(split * SPLIT, (split + 1) * SPLIT, device=self.device)
            distance = self.queries[:, None, :] - seen[None, :, None]
            inside = (self.queries >= 0)[:, None, :] & (seen < self.ends[:, None])[..., None]
            near = distance >= 0 if causal else torch.ones_like(inside)
            if window:
                near = near & (distance.abs() < window)
            visible = near & inside
            tiles = visible.any(2).any(1).nonzero()[:, 0]
            self._masks[key] = Masks(tiles, visible[tiles])
        return self._masks[key]

    def split_pages(self, group: int, split: int, tiles: torch.Tensor) -> torch.Tensor:
        """The page ids (tiles, 8) of a split; pages that no query sees may be wrong."""
        first = split * _SPLIT_PAGES
        return self.tables[group][tiles, first : first + _SPLIT_PAGES]


class _Lists:
    """The integers of a layout."""

    def __init__(self, chunks: Sequence[Chunk], groups: int) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.stored: list[list[int]] = [[] for _ in range(groups)]
        self.tables: list[list[NDArray[np.int64]]] = [[] for _ in range(groups)]
        self.queries: list[int] = []
        self.ends: list[int] = []
        self.tile_rows: list[int] = []
        self.token_queries: list[int] = []
        self.runs: list[tuple[slice, Chunk]] = []
        for chunk in chunks:
            self._add(chunk)

    def _add(self, chunk: Chunk) -> None:
        begin, count = len(self.tokens), len(chunk.tokens)
        end = chunk.start + count
        self.runs.append((slice(begin, begin + count), chunk))
        self.tokens += chunk.tokens
        positions = range(chunk.start, end)
        self.positions += positions
        tiles = -(-count // TILE)
        for group, (first, pages) in enumerate(page_tables(chunk)):
            self.stored[group] += [
                pages[at // PAGE_TOKENS - first] * PAGE_TOKENS + at % PAGE_TOKENS
                for at in positions
            ]
            table = np.zeros(-(-end // SPLIT) * _SPLIT_PAGES, np.int64)
            held = pages[: len(table) - first]
            table[first : first + len(held)] = held
            self.tables[group] += [table] * tiles
        padding = tiles * TILE - count
        self.token_queries += range(len(self.queries), len(self.queries) + count)
        self.queries += [*positions, *[-1] * padding]
        self.tile_rows += [*range(begin, begin + count), *[0] * padding]
        self.ends += [end] * tiles


def _joined(tables: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The tables as rows of one array; the shorter ones end with zeros."""
    joined = np.zeros((len(tables), max(map(len, tables))), np.int64)
    for row, table in zip(joined, tables, strict=True):
        row[: len(table)] = table
    return joined
