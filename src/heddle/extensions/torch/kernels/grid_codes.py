"""Codes of the types IQ1 to IQ3: points of a grid, with signs or shifts.

`grid` has the points of a type, each with 8 values, or 4 in IQ3. The last function has a case for
each type of the table.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.code_rows import BYTE, HALF, SHORT, WORD, Codes
from heddle.extensions.torch.kernels.simple_codes import half
from heddle.weights.grids import grid
from heddle.weights.tensor_types import TensorType

CODES = {
    TensorType.IQ1_S: Codes(32, (HALF, BYTE, SHORT)),
    TensorType.IQ1_M: Codes(16, (BYTE, BYTE, SHORT)),
    TensorType.IQ2_XXS: Codes(32, (HALF, BYTE)),
    TensorType.IQ2_XS: Codes(16, (HALF, SHORT, BYTE)),
    TensorType.IQ2_S: Codes(16, (HALF, BYTE, BYTE, BYTE, BYTE)),
    TensorType.IQ3_XXS: Codes(32, (HALF, BYTE, WORD)),
    TensorType.IQ3_S: Codes(32, (HALF, BYTE, BYTE, BYTE, BYTE)),
}


@cache
def points_of(kind: TensorType, device: torch.device) -> torch.Tensor | None:
    """The points of a type's grid, or None."""
    if kind not in CODES:
        return None
    name = "IQ1_S" if kind is TensorType.IQ1_M else kind.name
    return torch.from_numpy(grid(name)).to(torch.int8).to(device)


@triton.jit
def _bytes(field, block, size, place):
    """Bytes of blocks of `size` bytes, at places of the block."""
    return tl.load(field + block[:, None] * size + place[None, :]).to(tl.int32)


@triton.jit
def _signed(points, minus):
    """Points with signs, which are the lowest bits of `minus`."""
    return tl.where((minus & 1) == 1, -points, points)


@triton.jit
def _signs(seven, run):
    """The sign of each element of groups of eight, in the lowest bit; 1: minus.

    Seven signs are stored. The eighth makes the number of minus signs even.
    """
    parity = seven ^ (seven >> 4)
    parity = parity ^ (parity >> 2)
    parity = parity ^ (parity >> 1)
    at = (run % 8)[None, :]
    return tl.where(at == 7, parity, seven >> at)


@triton.jit
def _nibble(field, at, number):
    """Nibbles of bytes, the low one first."""
    byte = tl.load(field + at + number // 2).to(tl.int32)
    return ((byte >> (number % 2 * 4)) & 15).to(tl.float32)


@triton.jit
def _of_word(words, at, run):
    """Signs (rows, 32) and scales. A word has a scale in the upper four bits, and 4 * 7 signs."""
    word = tl.load(words + at)
    seven = (word[:, None] >> (run // 8 * 7)[None, :]) & 127
    return _signs(seven, run), ((word >> 28) & 15).to(tl.float32)


@triton.jit
def iq2_xxs(d, groups, words, grid, block, number, run):
    """Codes (rows, 32) and scales of run `number` (0 to 7). `words` are `groups` as words."""
    point = _bytes(groups, block, 64, number * 8 + run // 8)
    minus, scale = _of_word(words, block * 16 + number * 2 + 1, run)
    codes = _signed(tl.load(grid + point * 8 + (run % 8)[None, :]).to(tl.int32), minus)
    return codes, half(d, block) * (0.5 + scale) * 0.25


@triton.jit
def iq2_xs(d, packed, scales, grid, block, number, run):
    """Codes (rows, 16) and scales of run `number` (0 to 15)."""
    bits = _bytes(packed, block, 32, number * 2 + run // 8) & 0xFFFF
    points = tl.load(grid + (bits & 511) * 8 + (run % 8)[None, :]).to(tl.int32)
    step = half(d, block) * (0.5 + _nibble(scales, block * 8, number)) * 0.25
    return _signed(points, _signs(bits >> 9, run)), step


@triton.jit
def iq2_s(d, low, signs, high, scales, grid, block, number, run):
    """Codes (rows, 16) and scales of run `number` (0 to 15)."""
    group = number * 2 + run // 8
    upper = (_bytes(high, block, 8, group // 4) >> (group % 4 * 2)[None, :]) & 3
    point = _bytes(low, block, 32, group) | (upper << 8)
    minus = _bytes(signs, block, 32, group) >> (run % 8)[None, :]
    points = tl.load(grid + point * 8 + (run % 8)[None, :]).to(tl.int32)
    step = half(d, block) * (0.5 + _nibble(scales, block * 8, number)) * 0.25
    return _signed(points, minus), step


@triton.jit
def iq3_xxs(d, low, words, grid, block, number, run):
    """Codes (rows, 32) and scales of run `number` (0 to 7)."""
    point = _bytes(low, block, 64, number * 8 + run // 4)
    minus, scale = _of_word(words, block * 8 + number, run)
    codes = _signed(tl.load(grid + point * 4 + (run % 4)[None, :]).to(tl.int32), minus)
    return codes, half(d, block) * (0.5 + scale) * 0.5


@triton.jit
def iq3_s(d, low, high, signs, scales, grid, block, number, run):
    """Codes (rows, 32) and scales of run `number` (0 to 7)."""
    upper = tl.load(high + block * 8 + number).to(tl.int32)[:, None] >> (run // 4)[None, :]
    point = _bytes(low, block, 64, number * 8 + run // 4) | ((upper & 1) << 8)
    minus = _bytes(signs, block, 32, number * 4 + run // 8) >> (run % 8)[None, :]
    codes = _signed(tl.load(grid + point * 4 + (run % 4)[None, :]).to(tl.int32), minus)
    return codes, half(d, block) * (1.0 + 2.0 * _nibble(scales, block * 4, number))


@triton.jit
def _shifted(grid, point, run, is_down):
    """Points of IQ1, each moved by an eighth."""
    points = tl.load(grid + point * 8 + (run % 8)[None, :]).to(tl.float32)
    return points + tl.where(is_down, -0.125, 0.125)


@triton.jit
def iq1_s(d, low, packed, grid, block, number, run):
    """Codes (rows, 32) and scales of run `number` (0 to 7)."""
    bits = tl.load(packed + block * 8 + number).to(tl.int32)
    upper = (bits[:, None] >> (run // 8 * 3)[None, :]) & 7
    point = _bytes(low, block, 32, number * 4 + run // 8) | (upper << 8)
    step = half(d, block) * (2 * ((bits >> 12) & 7) + 1).to(tl.float32)
    return _shifted(grid, point, run, ((bits & 0x8000) != 0)[:, None]), step


@triton.jit
def iq1_m(low, high, packed, grid, block, number, run):
    """Codes (rows, 16) and scales of run `number` (0 to 15)."""
    group = number * 2 + run // 8
    upper = _bytes(high, block, 16, group // 2) >> (group % 2 * 4)[None, :]
    point = _bytes(low, block, 32, group) | ((upper & 7) << 8)
    d = tl.zeros_like(block).to(tl.int32)
    for index in tl.static_range(4):
        d |= ((tl.load(packed + block * 4 + index).to(tl.int32) >> 12) & 15) << (4 * index)
    scale = (tl.load(packed + block * 4 + number // 4).to(tl.int32) >> (number % 4 * 3)) & 7
    step = d.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    step = step * (2 * scale + 1).to(tl.float32)
    return _shifted(grid, point, run, (upper & 8) != 0), step


@triton.jit
def of_grids(f0, f1, f2, f3, f4, grid, block, number, run, KIND: tl.constexpr):
    """Codes and scales of run `number` of blocks. No type has offsets."""
    if KIND == "IQ1_S":
        codes, scale = iq1_s(f0, f1, f2, grid, block, number, run)
    elif KIND == "IQ1_M":
        codes, scale = iq1_m(f0, f1, f2, grid, block, number, run)
    elif KIND == "IQ2_XXS":
        codes, scale = iq2_xxs(f0, f1, f2, grid, block, number, run)
    elif KIND == "IQ2_XS":
        codes, scale = iq2_xs(f0, f1, f2, grid, block, number, run)
    elif KIND == "IQ2_S":
        codes, scale = iq2_s(f0, f1, f2, f3, f4, grid, block, number, run)
    elif KIND == "IQ3_XXS":
        codes, scale = iq3_xxs(f0, f1, f2, grid, block, number, run)
    else:
        codes, scale = iq3_s(f0, f1, f2, f3, f4, grid, block, number, run)
    return codes, scale, tl.zeros_like(block).to(tl.float32)
