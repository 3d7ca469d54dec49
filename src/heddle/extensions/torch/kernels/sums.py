"""Running sums of rows, for sampling."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.tiles import cdiv

_BLOCK = 512
_TERMS = 16
"""Terms that a launch adds: four of the levels that torch would compute one by one."""


@triton.jit
def _pair(x, at, end, step, k: tl.constexpr):
    """The sum of elements k and k + 1 steps before. Elements before the row are 0."""
    one, other = at - k * step, at - (k + 1) * step
    later = tl.load(x + one, mask=(one >= 0) & (at < end), other=0.0)
    return later + tl.load(x + other, mask=(other >= 0) & (at < end), other=0.0)


@triton.jit
def _four(x, at, end, step, k: tl.constexpr):
    return _pair(x, at, end, step, k) + _pair(x, at, end, step, k + 2)


@triton.jit
def _eight(x, at, end, step, k: tl.constexpr):
    return _four(x, at, end, step, k) + _four(x, at, end, step, k + 4)


@triton.jit(do_not_specialize=["columns", "step"])
def _add_levels(y, x, columns, step, BLOCK: tl.constexpr):
    """y[i] = the sum of x[i], x[i - step], ..., x[i - 15 * step], in pairs of pairs."""
    row = tl.program_id(1).to(tl.int64) * columns
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = _eight(x + row, at, columns, step, 0) + _eight(x + row, at, columns, step, 8)
    tl.store(y + row + at, found, mask=at < columns)


def prefix_sums(x: torch.Tensor) -> torch.Tensor:
    """The bits of `heddle.extensions.torch.sums.prefix_sums` (rows, columns) in fewer launches.

    Four levels read and write 16 bytes for each value where torch's need 96, if the cache serves
    what a launch reads again.
    """
    step, x = 1, x.contiguous()
    rows, columns = x.shape
    while step < columns:
        y = torch.empty_like(x)
        _add_levels[cdiv(columns, _BLOCK), rows](y, x, columns, step, BLOCK=_BLOCK)
        x, step = y, step * _TERMS
    return x
