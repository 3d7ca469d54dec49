"""Codes of blocks with one scale, and of types whose scales are floats of 8 bits.

The last function has a case for each type of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.code_rows import BYTE, FLOAT, HALF, SIGNED, WORD, Codes
from heddle.weights.quants import E2M1_DOUBLED, IQ4_LEVELS
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable

CODES = {
    TensorType.Q4_0: Codes(32, (HALF, BYTE)),
    TensorType.Q4_1: Codes(32, (HALF, HALF, BYTE), has_offsets=True),
    TensorType.Q5_0: Codes(32, (HALF, WORD, BYTE)),
    TensorType.Q5_1: Codes(32, (HALF, HALF, WORD, BYTE), has_offsets=True),
    TensorType.Q8_0: Codes(32, (HALF, SIGNED)),
    TensorType.IQ4_NL: Codes(32, (HALF, BYTE)),
    TensorType.MXFP4: Codes(32, (BYTE, BYTE)),
    TensorType.NVFP4: Codes(16, (BYTE, BYTE)),
    TensorType.F8_E4M3: Codes(32, (FLOAT, BYTE)),
    TensorType.TQ1_0: Codes(32, (BYTE, BYTE, HALF)),
    TensorType.TQ2_0: Codes(32, (BYTE, HALF)),
    TensorType.Q1_0: Codes(32, (HALF, BYTE)),
}


def _words(numbers: Iterable[float]) -> tuple[tl.constexpr, tl.constexpr]:
    """16 numbers as bytes of two integers of 64 bits, the first lowest."""
    raw = np.array([*numbers], np.int8).view(np.int64)
    return tl.constexpr(int(raw[0])), tl.constexpr(int(raw[1]))


_LOW_LEVELS, _HIGH_LEVELS = _words(IQ4_LEVELS)
_LOW_E2M1, _HIGH_E2M1 = _words(E2M1_DOUBLED)


@triton.jit
def half(field, at):
    return tl.load(field + at).to(tl.float32)


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
def _number(codes, LOW: tl.constexpr, HIGH: tl.constexpr):
    """The numbers of codes of 4 bits."""
    return (tl.where(codes < 8, LOW, HIGH) >> (codes % 8 * 8)).to(tl.int8).to(tl.int32)


@triton.jit
def levels(codes):
    """The levels of IQ4_NL and IQ4_XS."""
    return _number(codes, _LOW_LEVELS, _HIGH_LEVELS)


@triton.jit
def e2m1(codes):
    """Floats of 4 bits, doubled."""
    return _number(codes, _LOW_E2M1, _HIGH_E2M1)


@triton.jit
def halved_e8m0(field, at):
    """2**(e - 128) of bytes e; NaN of 255."""
    e = tl.load(field + at).to(tl.int32)
    bits = tl.where(e >= 2, (e - 1) << 23, 0x200000 << tl.minimum(e, 1))
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def nvfp4(e, low, block, number, run):
    """Codes (rows, 16) and scales of run `number` (0 to 3) of blocks of NVFP4."""
    byte = tl.load(low + block[:, None] * 32 + (number * 8 + run % 8)[None, :]).to(tl.int32)
    codes = e2m1((byte >> (run // 8 * 4)[None, :]) & 15)
    own = tl.load(e + block * 4 + number).to(tl.int32)
    own = tl.where(own == 0x7F, 0, own & 0x7F)
    normal = ((own << 20) + 0x3B800000).to(tl.float32, bitcast=True)  # 119 << 23
    return codes, tl.where(own < 8, own.to(tl.float32) * 0.0009765625, normal)


@triton.jit
def e4m3(numbers, block, number, run):
    """Numbers (rows, 32) of run `number` (0 to 1) of blocks of F8_E4M3, in float16.

    Shifted bits of a number are a float16 number, which is 2**-8 times its value. NaN also gets the
    highest bit of the exponent, so that it is NaN in float16.
    """
    code = tl.load(numbers + block[:, None] * 64 + (number * 32 + run)[None, :]).to(tl.int16)
    rest = code & 0x7F
    bits = ((code & 0x80) << 8) | (rest << 7) | (((rest + 1) & 0x80) << 7)
    return bits.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def q1_0(bits, block, number, run):
    """Codes (rows, 32) of run `number` (0 to 3) of blocks of Q1_0."""
    byte = tl.load(bits + block[:, None] * 16 + (number * 4 + run // 8)[None, :]).to(tl.int32)
    return ((byte >> (run % 8)[None, :]) & 1) * 2 - 1


@triton.jit
def tq2_0(low, block, number, run):
    """Codes (rows, 32) of run `number` (0 to 7) of blocks of TQ2_0."""
    byte = tl.load(low + block[:, None] * 64 + (number // 4 * 32 + run)[None, :]).to(tl.int32)
    return ((byte >> (number % 4 * 2)) & 3) - 1


@triton.jit
def tq1_0(fives, fours, block, number, run):
    """Codes (rows, 32) of run `number` (0 to 7) of blocks of TQ1_0."""
    element = number * 32 + run
    late, last = element >= 160, element >= 240
    rest = element - tl.where(last, 240, 160)
    place = tl.where(late, 32 + rest % 16, element % 32)
    digit = tl.where(last, rest // 4, tl.where(late, rest // 16, element // 32))
    first = tl.load(fives + block[:, None] * 48 + place[None, :], mask=(~last)[None, :], other=0)
    second = tl.load(fours + block[:, None] * 4 + (rest % 4)[None, :], mask=last[None, :], other=0)
    byte = tl.where(last[None, :], second, first).to(tl.int32)
    power = tl.where(digit % 2 == 1, 3, 1) * tl.where(digit // 2 == 1, 9, 1)
    power = power * tl.where(digit == 4, 81, 1)
    return (((byte * power[None, :]) & 255) * 3 >> 8) - 1


@triton.jit
def of_simple(f0, f1, f2, f3, block, number, run, KIND: tl.constexpr):
    """Codes, scales and offsets of run `number` of blocks; a block of 32 is one run."""
    offset = tl.zeros_like(block).to(tl.float32)
    if KIND == "Q8_0":
        codes = tl.load(f1 + block[:, None] * 32 + run[None, :]).to(tl.int32)
        scale = half(f0, block)
    elif KIND == "Q4_0":
        codes, scale = nibbles(f1, block, run) - 8, half(f0, block)
    elif KIND == "Q4_1":
        codes, scale, offset = nibbles(f2, block, run), half(f0, block), half(f1, block)
    elif KIND == "Q5_0":
        codes, scale = five_bits(f1, f2, block, run) - 16, half(f0, block)
    elif KIND == "Q5_1":
        codes, scale, offset = five_bits(f2, f3, block, run), half(f0, block), half(f1, block)
    elif KIND == "IQ4_NL":
        codes, scale = levels(nibbles(f1, block, run)), half(f0, block)
    elif KIND == "NVFP4":
        codes, scale = nvfp4(f0, f1, block, number, run)
    elif KIND == "F8_E4M3":
        codes, scale = e4m3(f1, block, number, run), tl.load(f0 + block)
    elif KIND == "TQ1_0":
        codes, scale = tq1_0(f0, f1, block, number, run), half(f2, block)
    elif KIND == "TQ2_0":
        codes, scale = tq2_0(f0, block, number, run), half(f1, block)
    elif KIND == "Q1_0":
        codes, scale = q1_0(f1, block, number, run), half(f0, block)
    else:
        codes, scale = e2m1(nibbles(f1, block, run)), halved_e8m0(f0, block)
    return codes, scale, offset
