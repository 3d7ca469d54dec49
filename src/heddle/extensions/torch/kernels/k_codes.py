"""Codes of blocks of 256 whose runs have integer scales: K-quants and IQ4_XS.

The last function has a case for each type of the table.
"""

from __future__ import annotations

import triton
import triton.language as tl

from heddle.extensions.torch.kernels.code_rows import BYTE, HALF, SHORT, SIGNED, Codes
from heddle.extensions.torch.kernels.simple_codes import half, levels
from heddle.weights.tensor_types import TensorType

CODES = {
    TensorType.Q2_K: Codes(16, (BYTE, BYTE, HALF, HALF), has_offsets=True),
    TensorType.Q3_K: Codes(16, (BYTE, BYTE, BYTE, HALF)),
    TensorType.Q4_K: Codes(32, (HALF, HALF, BYTE, BYTE), has_offsets=True),
    TensorType.Q5_K: Codes(32, (HALF, HALF, BYTE, BYTE, BYTE), has_offsets=True),
    TensorType.Q6_K: Codes(16, (BYTE, BYTE, SIGNED, HALF)),
    TensorType.IQ4_XS: Codes(32, (HALF, SHORT, BYTE, BYTE)),
}


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
def k_codes(low, block, number, run):
    """Low 4 bits (rows, 32) of run `number` of blocks of Q4_K or Q5_K."""
    byte = tl.load(low + block[:, None] * 128 + (number // 2 * 32 + run)[None, :]).to(tl.int32)
    return (byte >> (number % 2 * 4)) & 15


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
def two_bits(low, block, number, run):
    """Low 2 bits (rows, 16) of run `number` (0 to 15) of blocks of Q2_K or Q3_K."""
    place = number // 8 * 32 + number % 2 * 16 + run
    byte = tl.load(low + block[:, None] * 64 + place[None, :]).to(tl.int32)
    return (byte >> (number % 8 // 2 * 2)) & 3


@triton.jit
def q2_k_scales(small, d, dmin, block, number):
    """Scale and offset of run `number` (0 to 15) of blocks of Q2_K."""
    byte = tl.load(small + block * 16 + number).to(tl.int32)
    scale, offset = (byte & 15).to(tl.float32), (byte >> 4).to(tl.float32)
    return half(d, block) * scale, half(dmin, block) * -offset


@triton.jit
def q3_k(third, low, packed, d, block, number, run):
    """Codes (rows, 16) and scales of run `number` (0 to 15) of blocks of Q3_K."""
    byte = tl.load(third + block[:, None] * 32 + (number % 2 * 16 + run)[None, :]).to(tl.int32)
    bit = (byte >> (number // 2)) & 1
    lower = (tl.load(packed + block * 12 + number % 8).to(tl.int32) >> (number // 8 * 4)) & 15
    upper = (tl.load(packed + block * 12 + 8 + number % 4).to(tl.int32) >> (number // 4 * 2)) & 3
    scale = half(d, block) * ((lower | (upper << 4)) - 32).to(tl.float32)
    return (two_bits(low, block, number, run) | (bit << 2)) - 4, scale


@triton.jit
def iq4_xs(d, high, low, q, block, number, run):
    """Codes (rows, 32) and scales of run `number` (0 to 7) of blocks of IQ4_XS."""
    byte = tl.load(q + block[:, None] * 128 + (number * 16 + run % 16)[None, :]).to(tl.int32)
    upper = (tl.load(high + block).to(tl.int32) >> (number * 2)) & 3
    lower = (tl.load(low + block * 4 + number // 2).to(tl.int32) >> (number % 2 * 4)) & 15
    scale = half(d, block) * ((lower | (upper << 4)) - 32).to(tl.float32)
    return levels((byte >> (run // 16 * 4)[None, :]) & 15), scale


@triton.jit
def of_k(f0, f1, f2, f3, f4, block, number, run, KIND: tl.constexpr):
    """Codes, scales and offsets of run `number` of blocks."""
    offset = tl.zeros_like(block).to(tl.float32)
    if KIND == "Q2_K":
        codes = two_bits(f1, block, number, run)
        scale, offset = q2_k_scales(f0, f2, f3, block, number)
    elif KIND == "Q3_K":
        codes, scale = q3_k(f0, f1, f2, f3, block, number, run)
    elif KIND == "Q6_K":
        codes, scale = q6_k(f0, f1, f2, f3, block, number, run)
    elif KIND == "IQ4_XS":
        codes, scale = iq4_xs(f0, f1, f2, f3, block, number, run)
    else:
        scale, offset = k_scales(f0, f1, f2, block, number)
        if KIND == "Q4_K":
            codes = k_codes(f3, block, number, run)
        else:
            fifth = tl.load(f3 + block[:, None] * 32 + run[None, :]).to(tl.int32)
            codes = k_codes(f4, block, number, run)
            codes = codes | (((fifth >> number) & 1) << 4)
    return codes, scale, offset
