"""Blocks of stored weights inside a kernel: codes, a scale and an offset.

`heddle.weights.quants` defines the types. A value is scale * code + offset. Codes are float16
numbers without rounding error, most of them small integers. The fields of a block lie in tensors of
their own (`heddle.extensions.torch.blocks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.grid_codes import (
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    points_of,
)
from heddle.extensions.torch.kernels.k_codes import (
    iq4_xs,
    k_codes,
    k_scales,
    q2_k_scales,
    q3_k,
    q6_k,
    two_bits,
)
from heddle.extensions.torch.kernels.simple_codes import (
    e2m1,
    e4m3,
    five_bits,
    half,
    halved_e8m0,
    levels,
    nibbles,
    nvfp4,
    tq1_0,
    tq2_0,
)
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOAT, _HALF, _BYTE, _SIGNED = torch.float32, torch.float16, torch.uint8, torch.int8
_SHORT, _WORD = torch.int16, torch.int32


class Codes(NamedTuple):
    """How kernels read a type.

    Attributes:
        run: how many consecutive elements share a scale; at most 32.
        fields: the types of the numbers in each field.
        has_offsets: whether values have offsets.
    """

    run: int
    fields: tuple[torch.dtype, ...]
    has_offsets: bool = False


CODES = {
    TensorType.Q4_0: Codes(32, (_HALF, _BYTE)),
    TensorType.Q4_1: Codes(32, (_HALF, _HALF, _BYTE), has_offsets=True),
    TensorType.Q5_0: Codes(32, (_HALF, _WORD, _BYTE)),
    TensorType.Q5_1: Codes(32, (_HALF, _HALF, _WORD, _BYTE), has_offsets=True),
    TensorType.Q8_0: Codes(32, (_HALF, _SIGNED)),
    TensorType.Q2_K: Codes(16, (_BYTE, _BYTE, _HALF, _HALF), has_offsets=True),
    TensorType.Q3_K: Codes(16, (_BYTE, _BYTE, _BYTE, _HALF)),
    TensorType.Q4_K: Codes(32, (_HALF, _HALF, _BYTE, _BYTE), has_offsets=True),
    TensorType.Q5_K: Codes(32, (_HALF, _HALF, _BYTE, _BYTE, _BYTE), has_offsets=True),
    TensorType.Q6_K: Codes(16, (_BYTE, _BYTE, _SIGNED, _HALF)),
    TensorType.IQ4_NL: Codes(32, (_HALF, _BYTE)),
    TensorType.IQ4_XS: Codes(32, (_HALF, _SHORT, _BYTE, _BYTE)),
    TensorType.MXFP4: Codes(32, (_BYTE, _BYTE)),
    TensorType.NVFP4: Codes(16, (_BYTE, _BYTE)),
    TensorType.F8_E4M3: Codes(32, (_FLOAT, _BYTE)),
    TensorType.TQ1_0: Codes(32, (_BYTE, _BYTE, _HALF)),
    TensorType.TQ2_0: Codes(32, (_BYTE, _HALF)),
    TensorType.IQ1_S: Codes(32, (_HALF, _BYTE, _SHORT)),
    TensorType.IQ1_M: Codes(16, (_BYTE, _BYTE, _SHORT)),
    TensorType.IQ2_XXS: Codes(32, (_HALF, _BYTE)),
    TensorType.IQ2_XS: Codes(16, (_HALF, _SHORT, _BYTE)),
    TensorType.IQ2_S: Codes(16, (_HALF, _BYTE, _BYTE, _BYTE, _BYTE)),
    TensorType.IQ3_XXS: Codes(32, (_HALF, _BYTE, _WORD)),
    TensorType.IQ3_S: Codes(32, (_HALF, _BYTE, _BYTE, _BYTE, _BYTE)),
}
"""Types that kernels decode."""

_MOST_FIELDS = 5


def pointers(fields: Sequence[torch.Tensor], kind: TensorType) -> list[torch.Tensor]:
    """The fields with the types of their numbers, as many as kernels take, and the grid's points.

    A kernel does not read those that the type lacks.
    """
    if kind not in CODES:
        return [*fields] * (_MOST_FIELDS + 1)
    views = [field.view(own) for field, own in zip(fields, CODES[kind].fields, strict=True)]
    if kind is TensorType.IQ2_XXS:  # two numbers of different types share a field
        views.append(fields[1].view(_WORD))
    points = points_of(kind, fields[0].device)
    views += views[:1] * (_MOST_FIELDS - len(views))
    return [*views, views[0] if points is None else points]


@triton.jit
def of_32(f0, f1, f2, f3, at, run, KIND: tl.constexpr):
    """Codes, scales and offsets of blocks of 32 elements."""
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
    elif KIND == "IQ4_NL":
        codes, scale = levels(nibbles(f1, at, run)), half(f0, at)
    else:
        codes, scale = e2m1(nibbles(f1, at, run)), halved_e8m0(f0, at)
    return codes, scale, offset


@triton.jit
def of_k(f0, f1, f2, f3, f4, block, number, run, KIND: tl.constexpr):
    """Codes, scales and offsets of run `number` of K-quants."""
    offset = tl.zeros_like(block).to(tl.float32)
    if KIND == "Q2_K":
        codes = two_bits(f1, block, number, run)
        scale, offset = q2_k_scales(f0, f2, f3, block, number)
    elif KIND == "Q3_K":
        codes, scale = q3_k(f0, f1, f2, f3, block, number, run)
    elif KIND == "Q6_K":
        codes, scale = q6_k(f0, f1, f2, f3, block, number, run)
    else:
        scale, offset = k_scales(f0, f1, f2, block, number)
        if KIND == "Q4_K":
            codes = k_codes(f3, block, number, run)
        else:
            fifth = tl.load(f3 + block[:, None] * 32 + run[None, :]).to(tl.int32)
            codes = k_codes(f4, block, number, run)
            codes = codes | (((fifth >> number) & 1) << 4)
    return codes, scale, offset


@triton.jit
def of_others(f0, f1, f2, f3, f4, grid, block, number, run, KIND: tl.constexpr):
    """Codes and scales of run `number` of other types, which have no offsets."""
    if KIND == "IQ4_XS":
        codes, scale = iq4_xs(f0, f1, f2, f3, block, number, run)
    elif KIND == "NVFP4":
        codes, scale = nvfp4(f0, f1, block, number, run)
    elif KIND == "F8_E4M3":
        codes, scale = e4m3(f1, block, number, run), tl.load(f0 + block)
    elif KIND == "TQ1_0":
        codes, scale = tq1_0(f0, f1, block, number, run), half(f2, block)
    elif KIND == "TQ2_0":
        codes, scale = tq2_0(f0, block, number, run), half(f1, block)
    elif KIND == "IQ1_S":
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
    return codes, scale


@triton.jit
def run_of(
    f0, f1, f2, f3, f4, grid, row, number, runs, run, KIND: tl.constexpr, BLOCK_RUNS: tl.constexpr
):
    """Codes (rows, elements), scales (rows,) and offsets (rows,) of run `number` of each row.

    A row has `runs` runs, of which `BLOCK_RUNS` are a block. `run` counts the elements of a run.
    """
    if BLOCK_RUNS == 1:
        codes, scale, offset = of_32(f0, f1, f2, f3, row * runs + number, run, KIND)
    else:
        block = row * (runs // BLOCK_RUNS) + number // BLOCK_RUNS
        number = number % BLOCK_RUNS
        if KIND[0] == "Q":
            codes, scale, offset = of_k(f0, f1, f2, f3, f4, block, number, run, KIND)
        else:
            codes, scale = of_others(f0, f1, f2, f3, f4, grid, block, number, run, KIND)
            offset = tl.zeros_like(block).to(tl.float32)
    return codes.to(tl.float16), scale, offset
