"""Codes of blocks of 256 whose runs have integer scales: K-quants and IQ4_XS."""

from __future__ import annotations

import triton
import triton.language as tl

from heddle.extensions.torch.kernels.simple_codes import half, levels


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
