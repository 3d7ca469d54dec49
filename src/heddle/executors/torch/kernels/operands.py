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

from heddle.weights.tensor_types import TensorType

_BLOCK = 1024


class Operand(NamedTuple):
    """Activations (T, k) of a type, and the factor (T,) on the products of each token, or None."""

    values: torch.Tensor
    factors: torch.Tensor | None


@triton.jit
def power_of_two(peak):
    """The highest power of two that is at most `peak`, within limits whose inverse is a float."""
    power = (peak.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.minimum(tl.maximum(power, 7.9e-31), 1.2676506e30)  # 2**-100 to 2**100


@triton.jit
def _divide(values, factors, x, width, BLOCK: tl.constexpr):
    """Each row in float16, divided by a power of two. One program a row."""
    row = tl.program_id(0).to(tl.int64)
    peaks = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        own = tl.load(x + row * width + at, mask=at < width, other=0.0)
        peaks = tl.maximum(peaks, tl.abs(own))
    power = power_of_two(tl.max(peaks, 0))
    tl.store(factors + row, power)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        own = tl.load(x + row * width + at, mask=at < width, other=0.0)
        tl.store(values + row * width + at, (own / power).to(tl.float16), mask=at < width)


def operand(x: torch.Tensor, kind: TensorType) -> Operand:
    """x (T, k), float32, as an operand beside weights of this type."""
    if kind is TensorType.F32:
        return Operand(x, None)
    if kind is TensorType.BF16:
        rounded = x.bfloat16()
        # Triton's interpreter has no products of bfloat16; those of float32 have the same values.
        return Operand(rounded if x.is_cuda else rounded.float(), None)
    values = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    factors = x.new_empty(len(x))
    _divide[(len(x),)](values, factors, x, x.shape[1], BLOCK=_BLOCK)
    return Operand(values, factors)
