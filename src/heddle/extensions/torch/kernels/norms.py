"""RMS norm of rows, or of the heads of rows.

The norm of a sum is one kernel with the sum, and with the norm as an operand of matmuls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.operands import (
    Operand,
    empty_operand,
    store_operand,
    whole_rows,
)


class Normed(NamedTuple):
    """A sum x + y, its norm, and the norm as an operand."""

    total: torch.Tensor
    norm: torch.Tensor
    operand: Operand


@triton.jit
def _norm(
    y, total, values, factors, x, other, w, count, width, w_rows, eps,
    ADDED: tl.constexpr, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x / sqrt(mean(x**2) + eps) * w, where x may be a sum. A row is whole in one program."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (rows < count)[:, None] & (at < width)[None, :]
    places = rows[:, None] * width + at[None, :]
    own = tl.load(x + places, mask=inside, other=0.0)
    if ADDED:
        own = own + tl.load(other + places, mask=inside, other=0.0)
        tl.store(total + places, own, mask=inside)
    mean_square = tl.sum(own * own, 1) / width
    weights = tl.load(w + (rows % w_rows)[:, None] * width + at[None, :], mask=inside, other=0.0)
    found = own / tl.sqrt(mean_square + eps)[:, None] * weights
    tl.store(y + places, found, mask=inside)
    store_operand(values, factors, found, rows, count, places, inside, KIND)


def norm(x: torch.Tensor, w: torch.Tensor, eps: float, heads: int = 1) -> torch.Tensor:
    """RMS norm of x (T, n), or of each head; w has n elements, or those of one head."""
    y, width, x = torch.empty_like(x), x.shape[1] // heads, x.contiguous()
    sizes = len(x) * heads, width, w.numel() // width, eps
    grid, tile = whole_rows(len(x) * heads, width)
    _norm[grid](y, y, y, y, x, x, w, *sizes, ADDED=False, KIND="float32", **tile)
    return y


def add_norm(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, eps: float, kind: torch.dtype
) -> Normed:
    """x + y (T, n), and its norm, also as an operand of type `kind`."""
    x, y = x.contiguous(), y.contiguous()
    total, found = torch.empty_like(x), torch.empty_like(x)
    own = empty_operand(found, kind)
    grid, tile = whole_rows(*x.shape)
    name = str(kind).removeprefix("torch.")
    pointers = found, total, own.values, found if own.factors is None else own.factors, x, y, w
    _norm[grid](*pointers, *x.shape, 1, eps, ADDED=True, KIND=name, **tile)
    return Normed(total, found, own)
