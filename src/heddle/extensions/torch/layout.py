"""A plan as tensors: the step's tokens, their places in pages, and tiles of queries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from heddle.executors.given_states import given_states
from heddle.executors.serving import page_tables
from heddle.extensions.torch.sight import StepSight
from heddle.extensions.torch.staging import sent
from heddle.extensions.torch.tiles import TILE, padded
from heddle.state import PAGE_TOKENS
from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from heddle.step import Chunk, StepPlan

SPLIT = 256
"""Positions of a split of attention."""

FACTS = 4
"""Integers that describe a chunk."""

_SPLIT_PAGES = SPLIT // PAGE_TOKENS

_LISTS = ("tokens", "positions", "token_queries", "ends", "queries", "tile_rows")

Integers: TypeAlias = Any  # an array of NumPy, or a tensor: both have slices and `reshape`


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The positions of one split that the queries of all tiles see.

    Attributes:
        tiles: indices (A,) of the tiles with a query that sees a position.
        visible: (A, SPLIT, TILE) whether a query sees a position.
    """

    tiles: torch.Tensor
    visible: torch.Tensor

    def part(self, first: int, count: int) -> Masks:
        """The masks of some of the tiles."""
        own = slice(first, first + count)
        return Masks(self.tiles[own], self.visible[own])


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many entries the integers of a layout have. Those beyond a plan's entries are padding.

    Attributes:
        tokens: tokens, a multiple of `TILE`.
        stored: tokens whose keys and values are kept.
        tiles: tiles of queries.
        runs: chunks.
        splits: splits of attention.
        groups: groups of pages.
        of_tile: queries of a tile. No bits depend on it.
    """

    tokens: int
    stored: int
    tiles: int
    runs: int
    splits: int
    groups: int
    of_tile: int = TILE

    @property
    def length(self) -> int:
        """Entries of the array with all fields."""
        return sum(_aligned(math.prod(shape)) for shape in self._shapes().values())

    def views(self, array: Integers) -> dict[str, Integers]:
        """The fields of a layout as views of one array."""
        found, begin = {}, 0
        for name, shape in self._shapes().items():
            count = math.prod(shape)
            found[name] = array[begin : begin + count].reshape(shape)
            begin += _aligned(count)
        return found

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        pages = self.splits * _SPLIT_PAGES
        return {
            **dict.fromkeys(("tokens", "positions", "token_queries", "token_runs"), (self.tokens,)),
            "used": (1,),
            "facts": (self.runs, FACTS),
            "ends": (self.tiles,),
            "queries": (self.tiles, self.of_tile),
            "tile_rows": (self.tiles * self.of_tile,),
            **{f"stored {group}": (self.stored,) for group in range(self.groups)},
            **{f"table {group}": (self.tiles, pages) for group in range(self.groups)},
        }


def _aligned(count: int) -> int:
    """Triton compiles a kernel again for a pointer that is less aligned, perhaps with other sums.

    So each field begins at a multiple of 128 bytes.
    """
    return -(-count // 16) * 16


class Spare(NamedTuple):
    """Memory that padding writes to. No sequence owns it.

    Attributes:
        places: a place in the pages of each group.
        state: a row of the table of states.
    """

    places: Sequence[int]
    state: int


@dataclass(slots=True, eq=False)
class Layout:
    """A step of T tokens, in the order of the chunks, padded to whole tiles.

    A tile has queries of one chunk. Its place among the tiles has no effect on them.
    All integers are views of one tensor, so that one copy brings them to the device.

    Attributes:
        device: where the tensors are.
        count: the tokens whose keys and values are kept: T, or with padding.
        tokens, positions: (padded T,) int64. Padding is token 0 at position 0.
        used: (1,) T. Only operations that would do work for padding need it.
        stored: for each group, the place (count,) of each token in the group's pages.
        tables: for each group, the pages of each tile by page number: (tiles, numbers).
        queries: position of each tile's queries (tiles, of tile); -1: padding.
        ends: (tiles,) positions of each tile's sequence.
        tile_rows: the token (tiles * of tile,) of each query; 0 for padding.
        token_queries: the query (padded T,) of each token; 0 for padding.
        token_runs: the chunk (padded T,) of each token; -1 for padding.
        facts: for each chunk (chunks, FACTS): its first row, its tokens, how many of them are
            certain (-1: all), and its slot.
        runs: the rows of each chunk, and the chunk.
        splits: number of splits that hold the positions of the longest sequence.
        states: (padded T, width) hidden states for a prediction head, or None.
        sight: what the tokens see of pictures; None: nothing.
    """

    device: torch.device
    count: int
    tokens: torch.Tensor
    positions: torch.Tensor
    used: torch.Tensor
    stored: list[torch.Tensor]
    tables: list[torch.Tensor]
    queries: torch.Tensor
    ends: torch.Tensor
    tile_rows: torch.Tensor
    token_queries: torch.Tensor
    token_runs: torch.Tensor
    facts: torch.Tensor
    runs: list[tuple[slice, Chunk]]
    splits: int
    states: torch.Tensor | None = None
    sight: StepSight | None = None
    _masks: dict[tuple[int, int, bool, bool, int], Masks] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: StepPlan,
        groups: int,
        device: torch.device,
        *,
        has_states: bool,
    ) -> Layout:
        """Lay out a plan for a memory of `groups` groups.

        Raises:
            ValueError: a chunk lacks hidden states that a prediction head reads.
        """
        made = PlanIntegers(plan.chunks, groups)
        layout = cls.over(sent(made.packed(made.sizes, None), device), made.sizes)
        layout.runs = made.runs
        layout.sight = StepSight.of(made.runs, made.sizes.tokens, device)
        if has_states:
            given = given_states(plan)
            filled = np.zeros((made.sizes.tokens, given.shape[1]), np.float32)
            filled[: made.sizes.stored] = given
            layout.states = sent(filled, device)
        return layout

    @classmethod
    def over(cls, integers: torch.Tensor, sizes: Sizes) -> Layout:
        """The layout whose integers are in a tensor (`sizes.length`,)."""
        views = sizes.views(integers)
        groups = range(sizes.groups)
        return cls(
            integers.device,
            sizes.stored,
            stored=[views.pop(f"stored {group}") for group in groups],
            tables=[views.pop(f"table {group}") for group in groups],
            runs=[],
            splits=sizes.splits,
            **views,
        )

    def fill_unknown(self, latest: torch.Tensor) -> None:
        """Put the token that each slot sampled last (slots,) in place of unknown tokens."""
        unknown = self.tokens == UNKNOWN
        slots = torch.where(unknown, self.facts[self.token_runs, 3], 0)  # padding has no slot
        self.tokens.copy_(torch.where(unknown, latest[slots], self.tokens))

    def masks(
        self, split: int, window: int, *, causal: bool, aligned: bool = False, runs: int = 0
    ) -> Masks:
        """The masks of the split with this number. All layers of a step share the result.

        The rules are those of `heddle.models.ops.AttentionSpec`.
        """
        key = split, window, causal, aligned, runs
        if key not in self._masks:
            seen = torch.arange(split * SPLIT, (split + 1) * SPLIT, device=self.device)
            distance = self.queries[:, None, :] - seen[None, :, None]
            inside = (self.queries >= 0)[:, None, :] & (seen < self.ends[:, None])[..., None]
            near = distance >= 0 if causal else torch.ones_like(inside)
            if window:
                near = near & (distance.abs() < window)
            if aligned:
                near = near & ((self.queries // window)[:, None, :] == (seen // window)[:, None])
            if runs and self.sight is not None and self.sight.seen is not None:
                tokens = self.tile_rows.reshape(self.queries.shape)
                within = self.sight.within(runs, tokens, seen)
                near = near | within if causal else within
            visible = near & inside
            tiles = visible.any(2).any(1).nonzero()[:, 0]
            self._masks[key] = Masks(tiles, visible[tiles])
        return self._masks[key]

    def split_pages(self, group: int, split: int, tiles: torch.Tensor) -> torch.Tensor:
        """The page ids (tiles, 8) of a split; pages that no query sees may be wrong."""
        first = split * _SPLIT_PAGES
        return self.tables[group][tiles, first : first + _SPLIT_PAGES]


class PlanIntegers:
    """The integers of a plan's layout, on the host.

    Attributes:
        runs: the rows of each chunk, and the chunk.
    """

    def __init__(self, chunks: Sequence[Chunk], groups: int, of_tile: int = TILE) -> None:
        """A tile has up to `of_tile` queries."""
        self._of_tile = of_tile
        self.runs: list[tuple[slice, Chunk]] = []
        self._lists: dict[str, list[int]] = {name: [] for name in _LISTS}
        self._stored: list[list[int]] = [[] for _ in range(groups)]
        self._pages: list[list[tuple[int, Sequence[int]]]] = [[] for _ in range(groups)]
        for chunk in chunks:
            self._add(chunk)

    @property
    def sizes(self) -> Sizes:
        """The sizes that the plan needs."""
        count, ends = len(self._lists["tokens"]), self._lists["ends"]
        splits = -(-max(ends) // SPLIT)
        groups = len(self._stored)
        return Sizes(padded(count), count, len(ends), len(self.runs), splits, groups, self._of_tile)

    def packed(self, sizes: Sizes, spare: Spare | None) -> NDArray[np.int64]:
        """All integers as one array of these sizes. Padding of places and runs needs a `spare`."""
        array = np.zeros(sizes.length, np.int64)
        views = sizes.views(array)
        views["token_runs"][:] = -1
        views["queries"][:] = -1
        if spare is not None:
            views["facts"][:] = 0, 0, -1, spare.state
        for number, (rows, chunk) in enumerate(self.runs):
            views["token_runs"][rows] = number
            views["facts"][number] = _facts(rows, chunk)
        views["used"][0] = len(self._lists["tokens"])
        for name, values in self._lists.items():
            views[name].reshape(-1)[: len(values)] = values
        for group, places in enumerate(self._stored):
            stored = views[f"stored {group}"]
            stored[len(places) :] = 0 if spare is None else spare.places[group]
            stored[: len(places)] = places
            table = views[f"table {group}"]
            for row, (first, pages) in zip(table, self._pages[group], strict=False):
                row[first : first + len(pages)] = pages
        return array

    def _add(self, chunk: Chunk) -> None:
        lists = self._lists
        begin, count = len(lists["tokens"]), len(chunk.tokens)
        end = chunk.start + count
        self.runs.append((slice(begin, begin + count), chunk))
        lists["tokens"] += chunk.tokens
        positions = range(chunk.start, end)
        lists["positions"] += positions
        tiles = -(-count // self._of_tile)
        for group, (first, pages) in enumerate(page_tables(chunk)):
            self._stored[group] += [
                pages[at // PAGE_TOKENS - first] * PAGE_TOKENS + at % PAGE_TOKENS
                for at in positions
            ]
            numbers = -(-end // SPLIT) * _SPLIT_PAGES
            self._pages[group] += [(first, pages[: numbers - first])] * tiles
        padding = tiles * self._of_tile - count
        first_query = len(lists["queries"])
        lists["token_queries"] += range(first_query, first_query + count)
        lists["queries"] += [*positions, *[-1] * padding]
        lists["tile_rows"] += [*range(begin, begin + count), *[0] * padding]
        lists["ends"] += [end] * tiles


def _facts(rows: slice, chunk: Chunk) -> tuple[int, int, int, int]:
    """See `Layout.facts`."""
    count = rows.stop - rows.start
    return rows.start, count, count - chunk.uncertain if chunk.uncertain else -1, chunk.slot
