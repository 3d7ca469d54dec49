"""RMS norm of rows, or of the heads of rows.

The norm of a sum is one kernel with the sum, and with the norm as an operand of matmuls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from heddle.executors.torch.kernels.operands import Operand, kept_type, power_of_two

_SHORT, _SHORT_ROWS = 256, 16
"""Rows of so few elements share a program."""


class Normed(NamedTuple):
    """A sum x + y, its norm, and the norm as an operand."""

    total: torch.Tensor
    norm: torch.Tensor
    operand: Operand


@triton.jit
def rounded(x):
    """x rounded to the numbers of bfloat16. Triton's interpreter does not round in a cast."""
    bits = x.to(tl.int32, bitcast=True)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(x == x, near.to(tl.float32, bitcast=True), x)  # noqa: PLR0124 - NaN


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
    if KIND == "float16":
        power = power_of_two(tl.max(tl.abs(found), 1))
        tl.store(factors + rows, power, mask=rows < count)
        tl.store(values + places, (found / power[:, None]).to(tl.float16), mask=inside)
    elif KIND == "bfloat16":
        tl.store(values + places, rounded(found).to(values.dtype.element_ty), mask=inside)


def norm(x: torch.Tensor, w: torch.Tensor, eps: float, heads: int = 1) -> torch.Tensor:
    """RMS norm of x (T, n), or of each head; w has n elements, or those of one head."""
    y, width, x = torch.empty_like(x), x.shape[1] // heads, x.contiguous()
    sizes = len(x) * heads, width, w.numel() // width, eps
    grid, tile = _tile(len(x) * heads, width)
    _norm[grid](y, y, y, y, x, x, w, *sizes, ADDED=False, KIND="float32", **tile)
    return y


def add_norm(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, eps: float, kind: torch.dtype
) -> Normed:
    """x + y (T, n), and its norm, also as an operand of type `kind`."""
    x, y = x.contiguous(), y.contiguous()
    total, found = torch.empty_like(x), torch.empty_like(x)
    values, factors = found, None
    if kind is not torch.float32:
        values = torch.empty(x.shape, dtype=kept_type(kind, x.device), device=x.device)
    if kind is torch.float16:
        factors = x.new_empty(len(x))
    grid, tile = _tile(*x.shape)
    name = str(kind).removeprefix("torch.")
    pointers = found, total, values, found if factors is None else factors, x, y, w
    _norm[grid](*pointers, *x.shape, 1, eps, ADDED=True, KIND=name, **tile)
    return Normed(total, found, Operand(values, factors))


def _tile(count: int, width: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid, and the tile of a program. The tile follows from the width alone."""
    rows, block = _SHORT_ROWS if width <= _SHORT else 1, triton.next_power_of_2(width)
    warps = 4 if rows > 1 else min(16, max(4, block // 512))
    return (triton.cdiv(count, rows),), {"ROWS": rows, "BLOCK": block, "num_warps": warps}
