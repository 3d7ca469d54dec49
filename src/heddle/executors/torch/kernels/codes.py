"""Blocks of stored weights inside a kernel: small integers, a scale and an offset.

`heddle.weights.quants` defines the types. A value is scale * code + offset. The fields of a block
lie in tensors of their own (`heddle.executors.torch.blocks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS = {
    TensorType.Q4_0: 32,
    TensorType.Q4_1: 32,
    TensorType.Q5_0: 32,
    TensorType.Q5_1: 32,
    TensorType.Q8_0: 32,
    TensorType.Q4_K: 32,
    TensorType.Q5_K: 32,
    TensorType.Q6_K: 16,
}
"""Types that kernels decode, and how many consecutive elements share a scale."""

WITH_OFFSETS = {TensorType.Q4_1, TensorType.Q5_1, TensorType.Q4_K, TensorType.Q5_K}
"""Those whose values have offsets."""

_HALF, _BYTE, _SIGNED, _WORD = torch.float16, torch.uint8, torch.int8, torch.int32
_FIELDS = {
    TensorType.Q4_0: (_HALF, _BYTE),
    TensorType.Q4_1: (_HALF, _HALF, _BYTE),
    TensorType.Q5_0: (_HALF, _WORD, _BYTE),
    TensorType.Q5_1: (_HALF, _HALF, _WORD, _BYTE),
    TensorType.Q8_0: (_HALF, _SIGNED),
    TensorType.Q4_K: (_HALF, _HALF, _BYTE, _BYTE),
    TensorType.Q5_K: (_HALF, _HALF, _BYTE, _BYTE, _BYTE),
    TensorType.Q6_K: (_BYTE, _BYTE, _SIGNED, _HALF),
}
_MOST_FIELDS = 5


def pointers(fields: Sequence[torch.Tensor], kind: TensorType) -> list[torch.Tensor]:
    """The fields with the types of their numbers, repeated to the count that kernels take."""
    types = _FIELDS.get(kind)
    views = (
        [*fields]
        if types is None
        else [field.view(own) for field, own in zip(fields, types, strict=True)]
    )
    return views + views[:1] * (_MOST_FIELDS - len(views))


@triton.jit
def nibbles(low, at, run):
    """Elements of runs of 32 whose low halves of 16 bytes come first: (rows, 32)."""
    byte = tl.load(low + at[:, None] * 16 + (run % 16)[None, :]).to(tl.int32)
    return (byte >> (run // 16 * 4)[None, :]) & 15


@triton.jit
def five_bits(fifth, low, at, run):
    """Elements of 5 bits; a word holds the highest bit of each."""
    bits = (tl.load(fifth + at)[:, None] >> run[None, :]) & 1
    return nibbles(low, at, run) | (bits << 4)


@triton.jit
def half(field, at):
    return tl.load(field + at).to(tl.float32)


@triton.jit
def k_scales(d, dmin, packed, block, number):
    """Scale and offset of run `number` (0 to 7) of blocks of Q4_K or Q5_K."""
    place = packed + block * 12 + number % 4
    first = tl.load(place).to(tl.int32)
    second = tl.load(place + 4).to(tl.int32)
    third = tl.load(place + 8).to(tl.int32)
    late = number >= 4
    scale = tl.where(late, (third & 15) | (first >> 6 << 4), first & 63)
    offset = tl.where(late, (third >> 4) | (second >> 6 << 4), second & 63)
    return half(d, block) * scale.to(tl.float32), half(dmin, block) * -offset.to(tl.float32)


@triton.jit
def q6_k(low, high, scales, d, block, number, run):
    """Codes (rows, 16) and scales of run `number` (0 to 15) of blocks of Q6_K."""
    element = number * 16 + run
    part, rest = element // 128, element % 128
    lower = tl.load(low + block[:, None] * 128 + (part * 64 + rest % 64)[None, :]).to(tl.int32)
    upper = tl.load(high + block[:, None] * 64 + (part * 32 + rest % 32)[None, :]).to(tl.int32)
    lower = (lower >> (rest // 64 * 4)[None, :]) & 15
    upper = (upper >> (rest // 32 * 2)[None, :]) & 3
    scale = half(d, block) * tl.load(scales + block * 16 + number).to(tl.float32)
    return (lower | (upper << 4)) - 32, scale


@triton.jit
def k_codes(low, block, number, run):
    """Low 4 bits (rows, 32) of run `number` of blocks of Q4_K or Q5_K."""
    byte = tl.load(low + block[:, None] * 128 + (number // 2 * 32 + run)[None, :]).to(tl.int32)
    return (byte >> (number % 2 * 4)) & 15


@triton.jit
def run_of(f0, f1, f2, f3, f4, row, number, runs, run, KIND: tl.constexpr):
    """Codes (rows, elements), scales (rows,) and offsets (rows,) of run `number` of each row.

    A row has `runs` runs. `run` counts the elements of a run.
    """
    at = row * runs + number
    offset = tl.zeros_like(at).to(tl.float32)
    if KIND == "Q8_0":
        codes = tl.load(f1 + at[:, None] * 32 + run[None, :]).to(tl.int32)
        scale = half(f0, at)
    elif KIND == "Q4_0":
        codes, scale = nibbles(f1, at, run) - 8, half(f0, at)
    elif KIND == "Q4_1":
        codes, scale, offset = nibbles(f2, at, run), half(f0, at), half(f1, at)
    elif KIND == "Q5_0":
        codes, scale = five_bits(f1, f2, at, run) - 16, half(f0, at)
    elif KIND == "Q5_1":
        codes, scale, offset = five_bits(f2, f3, at, run), half(f0, at), half(f1, at)
    elif KIND == "Q6_K":
        codes, scale = q6_k(f0, f1, f2, f3, at // 16, number % 16, run)
    else:
        scale, offset = k_scales(f0, f1, f2, at // 8, number % 8)
        if KIND == "Q4_K":
            codes = k_codes(f3, at // 8, number % 8, run)
        else:
            fifth = tl.load(f3 + (at // 8)[:, None] * 32 + run[None, :]).to(tl.int32)
            codes = k_codes(f4, at // 8, number % 8, run)
            codes = codes | (((fifth >> (number % 8)) & 1) << 4)
    return codes, scale, offset
