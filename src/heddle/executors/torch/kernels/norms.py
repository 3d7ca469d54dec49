"""RMS norm of rows, or of the heads of rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_SHORT, _SHORT_ROWS = 256, 16
"""Rows of so few elements share a program."""


@triton.jit
def _norm(
    y, x, w, count, width, w_rows, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """x / sqrt(mean(x**2) + eps) * w. A row is whole in one program."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (rows < count)[:, None] & (at < width)[None, :]
    places = rows[:, None] * width + at[None, :]
    own = tl.load(x + places, mask=inside, other=0.0)
    mean_square = tl.sum(own * own, 1) / width
    weights = tl.load(w + (rows % w_rows)[:, None] * width + at[None, :], mask=inside, other=0.0)
    tl.store(y + places, own / tl.sqrt(mean_square + eps)[:, None] * weights, mask=inside)


def norm(x: torch.Tensor, w: torch.Tensor, eps: float, heads: int = 1) -> torch.Tensor:
    """RMS norm of x (T, n), or of each head; w has n elements, or those of one head."""
    y, width = torch.empty_like(x), x.shape[1] // heads
    count = len(x) * heads
    rows = _SHORT_ROWS if width <= _SHORT else 1
    grid = (triton.cdiv(count, rows),)
    w_rows, block = w.numel() // width, triton.next_power_of_2(width)
    _norm[grid](y, x.contiguous(), w, count, width, w_rows, eps, ROWS=rows, BLOCK=block)
    return y
