"""Activations as operands of tensor cores: float16 or bfloat16, each token for itself.

float16 keeps 11 bits but little range. So each token is divided by the power of two of its largest
element, which rounds nothing, and the product is multiplied by it. Weights in bfloat16 meet
activations in bfloat16, because one product of tensor cores has operands of one type. Weights in
float32 meet activations in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.tiles import cdiv, power_of_two_from
from heddle.weights.tensor_types import TensorType

_BLOCK = 1024
_SHORT, _SHORT_ROWS = 256, 16
"""Rows of so few elements share a program."""


_LEAST_POWER, _MOST_POWER = tl.constexpr(2.0**-100), tl.constexpr(2.0**100)


class Operand(NamedTuple):
    """Activations (T, k) of a type, and the factor (T,) on the products of each token, or None."""

    values: torch.Tensor
    factors: torch.Tensor | None


@triton.jit
def power_of_two(peak):
    """The highest power of two that is at most `peak`, within limits whose inverse is a float."""
    power = (peak.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.minimum(tl.maximum(power, _LEAST_POWER), _MOST_POWER)


@triton.jit
def inverse(power):
    """1 / a power of two. A division of a GPU might round it."""
    return (0x7F000000 - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def _divide(values, factors, x, count, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows in float16, each divided by a power of two."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    own = (rows < count)[:, None]
    peaks = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = own & (at < width)[None, :]
        found = tl.load(x + rows[:, None] * width + at[None, :], mask=inside, other=0.0)
        peaks = tl.maximum(peaks, tl.abs(found))
    power = power_of_two(tl.max(peaks, 1))
    tl.store(factors + rows, power, mask=rows < count)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = own & (at < width)[None, :]
        places = rows[:, None] * width + at[None, :]
        found = tl.load(x + places, mask=inside, other=0.0) * inverse(power)[:, None]
        tl.store(values + places, found.to(tl.float16), mask=inside)


@triton.jit
def rounded(x):
    """x rounded to the numbers of bfloat16. Triton's interpreter does not round in a cast."""
    bits = x.to(tl.int32, bitcast=True)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(x == x, near.to(tl.float32, bitcast=True), x)  # noqa: PLR0124 - NaN


@triton.jit
def store_operand(values, factors, x, rows, count, places, inside, KIND: tl.constexpr):
    """Store whole rows of x as an operand of a type. An operand in float32 is x itself."""
    if KIND == "float16":
        power = power_of_two(tl.max(tl.abs(x), 1))
        tl.store(factors + rows, power, mask=rows < count)
        tl.store(values + places, (x * inverse(power)[:, None]).to(tl.float16), mask=inside)
    elif KIND == "bfloat16":
        tl.store(values + places, rounded(x).to(values.dtype.element_ty), mask=inside)


def operand_type(kind: TensorType) -> torch.dtype:
    """The type of activations beside weights of a type."""
    return {TensorType.F32: torch.float32, TensorType.BF16: torch.bfloat16}.get(kind, torch.float16)


def operand(x: torch.Tensor, kind: torch.dtype) -> Operand:
    """x (T, k), float32, as an operand of this type."""
    if kind is torch.float32:
        return Operand(x, None)
    if kind is torch.bfloat16:
        return Operand(x.bfloat16().to(kept_type(kind, x.device)), None)
    return halves(x)


def kept_type(kind: torch.dtype, device: torch.device) -> torch.dtype:
    """The type of the numbers that hold an operand of a type.

    Triton's interpreter has no products of bfloat16; those of float32 have the same values.
    """
    is_interpreted = device.type == "cpu" and kind is torch.bfloat16
    return torch.float32 if is_interpreted else kind


def halves(x: torch.Tensor) -> Operand:
    """x (T, k), float32, in float16, with the power of two of each row as its factor."""
    values = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    factors = x.new_empty(len(x))
    (count, width), rows = x.shape, 1 if x.shape[1] > _SHORT else _SHORT_ROWS
    block = _BLOCK if rows == 1 else power_of_two_from(width)
    grid = (cdiv(count, rows),)
    _divide[grid](values, factors, x.contiguous(), count, width, ROWS=rows, BLOCK=block)
    return Operand(values, factors)


def empty_operand(x: torch.Tensor, kind: torch.dtype) -> Operand:
    """x (T, k), float32, as an operand of this type; `store_operand` fills others than x itself."""
    if kind is torch.float32:
        return Operand(x, None)
    values = torch.empty(x.shape, dtype=kept_type(kind, x.device), device=x.device)
    return Operand(values, x.new_empty(len(x)) if kind is torch.float16 else None)


def whole_rows(count: int, width: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid of programs of whole rows, and their tile, which follows from the width alone."""
    rows, block = _SHORT_ROWS if width <= _SHORT else 1, power_of_two_from(width)
    warps = 4 if rows > 1 else min(16, max(4, block // 512))
    if block > 1 << 14:  # registers of 16 warps do not hold the row
        warps = 32
    return (cdiv(count, rows),), {"ROWS": rows, "BLOCK": block, "num_warps": warps}
