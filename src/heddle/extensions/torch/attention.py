"""Attention over pages, in calls whose shapes follow from the model alone.

Positions are split every `SPLIT`. For each tile of queries and each split, one call multiplies keys
(positions are the rows of the product) by the queries of all heads of a group, and a second one
multiplies values by weights. Splits are merged in ascending order, each with its own maximum and
sum. A split of which a query sees nothing leaves the query's numbers as they are. So the arithmetic
of a query depends on its own position and sequence only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.functions import exp, tanh, total
from heddle.extensions.torch.layout import SPLIT
from heddle.extensions.torch.tiles import TILE, check_columns

if TYPE_CHECKING:
    from heddle.extensions.torch.cache import Vectors
    from heddle.extensions.torch.layout import Layout, Masks
    from heddle.models.ops import PositionBias

ATTENTION_SCRATCH = 192 << 20
"""Most bytes of results of splits that the kernels keep, unless a tile needs more. More tiles take
several rounds. It holds 64 tokens with 40,000 positions and 32 heads of 128."""


_TILES_AT_ONCE = 64
"""Tiles that read keys and values at once, each its own: a picture may have thousands of patches.
No bits depend on it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and rules of an attention.

    Attributes:
        heads, kv_heads: query heads, and heads of keys and values.
        key_dim: elements of a key.
        value_dim: elements of a value.
        scale, window, soft_cap, causal, bias, aligned, runs: as in
            `heddle.models.ops.AttentionSpec`.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    causal: bool = True
    bias: PositionBias | None = None
    aligned: bool = False
    runs: int = 0

    @property
    def columns(self) -> int:
        """Queries of a tile that one head of keys serves."""
        return TILE * (self.heads // self.kv_heads)

    def check(self, device: torch.device) -> None:
        """Check the calls of this shape; see :func:`.tiles.check_columns`."""
        generator = torch.Generator().manual_seed(0)
        for rows, inner in ((SPLIT, self.key_dim), (self.value_dim, SPLIT)):
            left = torch.randn(self.kv_heads, rows, inner, generator=generator)
            check_columns(left.to(device), self.columns)


def attend(
    q: torch.Tensor,
    keys: Vectors,
    values: Vectors,
    layout: Layout,
    group: int,
    shape: Shape,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of all tokens of a step: (T, heads * value_dim).

    Args:
        q: (T, heads * key_dim).
        keys, values: vectors of kv_heads * dim elements; of values, the first elements of a head
            count.
        layout: the step.
        group: number of the layer's group of pages.
        shape: sizes and rules.
        sinks: (heads,) scores of no position, or None.
    """
    tiles, shared = len(layout.queries), shape.heads // shape.kv_heads
    by_tile = q[layout.tile_rows].reshape(tiles, TILE, shape.kv_heads, shared, shape.key_dim)
    # (tiles, kv_heads, key_dim, columns): queries of a tile, all heads of a group beside each other
    by_tile = by_tile.permute(0, 2, 4, 1, 3).reshape(
        tiles, shape.kv_heads, shape.key_dim, shape.columns
    )
    merged = _Merged(tiles, shape, q.device)
    for split in range(layout.splits):
        masks = layout.masks(
            split,
            shape.window,
            causal=shape.causal,
            aligned=shape.aligned,
            runs=shape.runs,
        )
        for first in range(0, len(masks.tiles), _TILES_AT_ONCE):
            some = masks.part(first, _TILES_AT_ONCE)
            pages = layout.split_pages(group, split, some.tiles)
            asked, bias = by_tile[some.tiles], _bias(shape, layout, some.tiles, split)
            merged.add(asked, keys.read(pages), values.read(pages), some, bias)
    if sinks is not None:
        merged.add_sinks(sinks)
    found = merged.result().reshape(tiles, shape.kv_heads, shape.value_dim, TILE, shared)
    rows = found.permute(0, 3, 1, 4, 2).reshape(tiles * TILE, shape.heads * shape.value_dim)
    return rows[layout.token_queries]


def _bias(shape: Shape, layout: Layout, tiles: torch.Tensor, split: int) -> torch.Tensor | None:
    """What joins the scores (A, kv_heads, SPLIT, columns) of a split; None: nothing."""
    if shape.bias is None:
        return None
    seen = torch.arange(split * SPLIT, (split + 1) * SPLIT, device=layout.device)
    distances = seen[None, :, None] - layout.queries[tiles][:, None, :]
    lowest = int(distances.min())
    known = np.arange(lowest, int(distances.max()) + 1)
    table = torch.from_numpy(shape.bias.of(known).astype(np.float32)).to(layout.device)
    by_head = table[:, distances - lowest]  # (heads, A, SPLIT, TILE)
    grouped = by_head.reshape(shape.kv_heads, -1, *distances.shape).permute(2, 0, 3, 4, 1)
    return grouped.reshape(len(tiles), shape.kv_heads, SPLIT, shape.columns)


class _Merged:
    """The softmax over the splits so far, of each query: maximum, sum, weighted sum of values."""

    def __init__(self, tiles: int, shape: Shape, device: torch.device) -> None:
        self._shape = shape
        size = tiles, shape.kv_heads, 1, shape.columns
        self._peak = torch.full(size, -torch.inf, device=device)
        self._sum = torch.zeros(size, device=device)
        mixed = tiles, shape.kv_heads, shape.value_dim, shape.columns
        self._mixed = torch.zeros(mixed, device=device)

    def add(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        masks: Masks,
        bias: torch.Tensor | None,
    ) -> None:
        """Add a split for the tiles of `masks`.

        queries (A, kv_heads, key_dim, columns); keys and values (A, pages, PAGE_TOKENS, width);
        bias as :func:`_bias` returns it.
        """
        shape, tiles = self._shape, masks.tiles
        keys, values = self._by_head(keys), self._by_head(values)[..., : shape.value_dim]
        # A value that is not finite concerns the queries that see it, and 0 * NaN is NaN.
        finite = values.isfinite()
        values = torch.where(finite, values, 0.0).transpose(2, 3).contiguous()
        scores = _products(keys, queries) * shape.scale
        if shape.soft_cap:
            scores = tanh(scores * (1 / shape.soft_cap)) * shape.soft_cap
        if bias is not None:
            scores = scores + bias
        scores = torch.where(finite.all(-1, keepdim=True), scores, torch.nan)
        visible = masks.visible.repeat_interleave(shape.columns // TILE, -1)[:, None]
        scores = torch.where(visible, scores, -torch.inf)
        sees = visible.any(2, keepdim=True)
        before = self._peak[tiles]
        peak = torch.maximum(before, scores.amax(2, keepdim=True))
        faded, weights = exp(before - peak), exp(scores - peak)
        grown = self._sum[tiles] * faded + total(weights, 2)
        mixed = self._mixed[tiles] * faded + _products(values, weights)
        self._peak[tiles] = torch.where(sees, peak, before)
        self._sum[tiles] = torch.where(sees, grown, self._sum[tiles])
        self._mixed[tiles] = torch.where(sees, mixed, self._mixed[tiles])

    def add_sinks(self, sinks: torch.Tensor) -> None:
        """Add a score of no position to each head's sum."""
        shape = self._shape
        own = sinks.reshape(1, shape.kv_heads, 1, -1).repeat(1, 1, 1, TILE)
        peak = torch.maximum(self._peak, own)
        faded = exp(self._peak - peak)
        self._sum = self._sum * faded + exp(own - peak)
        self._mixed = self._mixed * faded

    def result(self) -> torch.Tensor:
        """(tiles, kv_heads, value_dim, columns)."""
        return self._mixed / self._sum

    def _by_head(self, stored: torch.Tensor) -> torch.Tensor:
        """(A, kv_heads, SPLIT, dim)."""
        by_head = stored.reshape(len(stored), SPLIT, self._shape.kv_heads, -1)
        return by_head.transpose(1, 2).contiguous()


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left[i] @ right[i] of each tile i, one call each: the number of tiles is the step's."""
    product = left.new_empty(*left.shape[:-1], right.shape[-1])
    right = right.contiguous()
    for index in range(len(left)):
        torch.bmm(left[index], right[index], out=product[index])
    return product
