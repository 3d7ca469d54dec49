"""Decoders of all types of blocks but IQ1 to IQ3, over torch tensors: from blocks to float32.

`heddle.weights.quants` documents the layouts. Each argument is a field of all blocks, (n, bytes).
The table at the end has the sizes of the fields.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from heddle.extensions.torch.bits import bit_planes, fields, half, halves, nibbles, shorts, signed
from heddle.weights.quants import (
    E2M1_DOUBLED,
    IQ4_LEVELS,
    halved_e8m0,
    halved_unsigned_e4m3,
)
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable


class Block(NamedTuple):
    """How a type's blocks are stored.

    Attributes:
        sizes: bytes of the fields of a block, in order.
        decode: from the fields of n blocks, each (n, bytes), to n blocks of values, float32.
    """

    sizes: tuple[int, ...]
    decode: Callable[..., torch.Tensor]


def q8_0(d: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return half(d) * signed(q)


def q4_0(d: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return half(d) * (nibbles(q).float() - 8)


def q4_1(d: torch.Tensor, m: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return half(d) * nibbles(q).float() + half(m)


def _five_bits(fifth: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """4 bytes of fifth bits, one per element, and 16 bytes of nibbles."""
    shifts = torch.arange(32, dtype=torch.int32, device=low.device)
    bits = (fifth.view(torch.int32) >> shifts & 1) << 4
    return (nibbles(low) | bits).float()


def q5_0(d: torch.Tensor, fifth: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return half(d) * (_five_bits(fifth, low) - 16)


def q5_1(d: torch.Tensor, m: torch.Tensor, fifth: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return half(d) * _five_bits(fifth, low) + half(m)


def _scales_and_mins(
    d: torch.Tensor, dmin: torch.Tensor, packed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """d * scale and dmin * min of Q4_K and Q5_K, each (n, 8, 1)."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = torch.cat([first & 63, third & 0x0F | first >> 6 << 4], -1)
    offset = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    return (half(d) * scale.float())[..., None], (half(dmin) * offset.float())[..., None]


def q4_k(
    d: torch.Tensor, dmin: torch.Tensor, packed: torch.Tensor, low: torch.Tensor
) -> torch.Tensor:
    scale, offset = _scales_and_mins(d, dmin, packed)
    q = nibbles(low.reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scale * q.float() - offset


def q5_k(
    d: torch.Tensor,
    dmin: torch.Tensor,
    packed: torch.Tensor,
    fifth: torch.Tensor,
    low: torch.Tensor,
) -> torch.Tensor:
    scale, offset = _scales_and_mins(d, dmin, packed)
    q = nibbles(low.reshape(-1, 4, 32)).reshape(-1, 8, 32) | bit_planes(fifth, 1) << 4
    return scale * q.float() - offset


def q6_k(
    low: torch.Tensor, high: torch.Tensor, scale: torch.Tensor, d: torch.Tensor
) -> torch.Tensor:
    lower = nibbles(low.reshape(-1, 2, 64)).reshape(-1, 16, 16)
    upper = bit_planes(high.reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scales = half(d) * signed(scale)
    return scales[..., None] * ((lower | upper << 4).float() - 32)


def q2_k(
    small: torch.Tensor, low: torch.Tensor, d: torch.Tensor, dmin: torch.Tensor
) -> torch.Tensor:
    scale, offset = half(d) * (small & 0x0F).float(), half(dmin) * (small >> 4).float()
    q = bit_planes(low.reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    return scale[..., None] * q.float() - offset[..., None]


def q3_k(
    third: torch.Tensor, low: torch.Tensor, packed: torch.Tensor, d: torch.Tensor
) -> torch.Tensor:
    lower, upper = nibbles(packed[:, :8]), bit_planes(packed[:, 8:], 2).reshape(-1, 16)
    scale = half(d) * ((lower | upper << 4).float() - 32)
    q = bit_planes(low.reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    bits = bit_planes(third, 1).reshape(-1, 16, 16)
    return scale[..., None] * ((q | bits << 2).float() - 4)


def iq4_nl(d: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return half(d) * _tables(d.device).iq4[nibbles(q).long()]


def iq4_xs(d: torch.Tensor, high: torch.Tensor, low: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    upper = fields(shorts(high), range(0, 16, 2), 3).flatten(1)
    scale = half(d) * ((halves(low) | upper << 4).float() - 32)
    levels = _tables(d.device).iq4[nibbles(q.reshape(-1, 8, 16)).long()]
    return scale[..., None] * levels


def mxfp4(e: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    tables = _tables(e.device)
    return tables.e8m0[e.long()] * tables.e2m1[nibbles(q).long()]


def nvfp4(e: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    tables = _tables(e.device)
    values = tables.e2m1[nibbles(q.reshape(-1, 4, 8)).long()]
    return tables.e4m3[e.long()][..., None] * values


def f8_e4m3(d: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return d.contiguous().view(torch.float32) * numbers.view(torch.float8_e4m3fn).float()


def tq1_0(fives: torch.Tensor, fours: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    digits = [
        _digits(run, count) for run, count in ((fives[:, :32], 5), (fives[:, 32:], 5), (fours, 4))
    ]
    return half(d) * (torch.cat(digits, -1).float() - 1)


def _digits(run: torch.Tensor, count: int) -> torch.Tensor:
    """The ternary digits of bytes, the first digit of all bytes first."""
    return torch.cat([(run.int() * 3**digit & 0xFF) * 3 >> 8 for digit in range(count)], -1)


def q1_0(d: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return half(d) * (2 * fields(bits, range(8), 1).flatten(1).float() - 1)


def tq2_0(q: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return half(d) * (bit_planes(q.reshape(-1, 2, 32), 2).flatten(1).float() - 1)


class _Tables(NamedTuple):
    """Values by code, float32."""

    iq4: torch.Tensor
    e2m1: torch.Tensor
    e8m0: torch.Tensor
    e4m3: torch.Tensor


@cache
def _tables(device: torch.device) -> _Tables:
    codes = np.arange(256, dtype=np.uint8)
    tables = IQ4_LEVELS, E2M1_DOUBLED, halved_e8m0(codes), halved_unsigned_e4m3(codes)
    return _Tables(*(torch.from_numpy(values).to(device) for values in tables))


BLOCKS = {
    TensorType.Q4_0: Block((2, 16), q4_0),
    TensorType.Q4_1: Block((2, 2, 16), q4_1),
    TensorType.Q5_0: Block((2, 4, 16), q5_0),
    TensorType.Q5_1: Block((2, 2, 4, 16), q5_1),
    TensorType.Q8_0: Block((2, 32), q8_0),
    TensorType.Q2_K: Block((16, 64, 2, 2), q2_k),
    TensorType.Q3_K: Block((32, 64, 12, 2), q3_k),
    TensorType.Q4_K: Block((2, 2, 12, 128), q4_k),
    TensorType.Q5_K: Block((2, 2, 12, 32, 128), q5_k),
    TensorType.Q6_K: Block((128, 64, 16, 2), q6_k),
    TensorType.IQ4_NL: Block((2, 16), iq4_nl),
    TensorType.IQ4_XS: Block((2, 2, 4, 128), iq4_xs),
    TensorType.TQ1_0: Block((48, 4, 2), tq1_0),
    TensorType.TQ2_0: Block((64, 2), tq2_0),
    TensorType.MXFP4: Block((1, 16), mxfp4),
    TensorType.NVFP4: Block((4, 32), nvfp4),
    TensorType.Q1_0: Block((2, 16), q1_0),
    TensorType.F8_E4M3: Block((4, 64), f8_e4m3),
}
