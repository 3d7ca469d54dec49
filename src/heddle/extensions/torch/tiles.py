"""Matmuls in tiles of a fixed number of tokens, so that a token's bits do not depend on the others.

A library chooses the algorithm of a matmul by its shape. So each call here has a shape that follows
from the model alone: the weights are the rows of the product (M), and `TILE` tokens are its columns
(N). Within a call, all columns must get the same arithmetic. Libraries do this, but do not promise
it. :func:`check_columns` finds out for each shape when a model is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    RowsTile = tuple[Sequence[int], torch.Tensor]
    """Numbers of rows of a step, and their logits or hidden states."""

TILE = 16
"""Tokens, or queries, in one call."""

MOST_READ = 4 * TILE
"""Most rows whose logits a GPU computes at once. Each time, it reads the output matrix: 0.3 ms of
an H200 for 150,000 tokens."""


def cdiv(count: int, size: int) -> int:
    """The number of blocks of a size that hold `count`. Triton's own function takes 2 us."""
    return -(-count // size)


def power_of_two_from(number: int) -> int:
    """The lowest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def padded(count: int) -> int:
    """The next multiple of `TILE`, at least one tile."""
    return max(1, -(-count // TILE)) * TILE


def multiply(x: torch.Tensor, panels: Iterable[torch.Tensor], out_features: int) -> torch.Tensor:
    """x (T, k) times a matrix (n, k) transposed: (T, n). T is a multiple of `TILE`.

    `panels` are consecutive rows of the matrix, float32.
    """
    y = x.new_empty(len(x), out_features)
    first = 0
    for panel in panels:
        rows = slice(first, first + len(panel))
        for tile in range(0, len(x), TILE):
            y[tile : tile + TILE, rows] = (panel @ x[tile : tile + TILE].T).T
        first = rows.stop
    return y


def check_columns(left: torch.Tensor, columns: int) -> None:
    """Check that left (..., m, k) @ (..., k, columns) computes equal columns equally.

    Raises:
        ConfigError: it does not.
    """
    shape = (*left.shape[:-2], left.shape[-1], columns)
    generator = torch.Generator().manual_seed(columns)
    others = torch.randn(shape, generator=generator).to(left.device)
    same = others[..., :1].expand(shape).contiguous()
    alone = left @ same
    in_company = left @ torch.cat([others[..., 1:], others[..., :1]], -1)
    if torch.equal(alone, alone[..., :1].expand_as(alone)) and torch.equal(
        alone[..., 0], in_company[..., -1]
    ):
        return
    raise ConfigError(
        f"torch {torch.__version__} multiplies ({left.shape[-2]}, {left.shape[-1]}) by {columns}"
        " columns differently by column, so results would depend on a token's company; use"
        " --device cpu, or another version of torch",
        param="device",
    )
