"""Reads and writes keys and values of pages inside a kernel.

`heddle.extensions.torch.kv_formats` defines the formats. A vector of a position is a row of each
field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from heddle.extensions.torch.tiles import cdiv

if TYPE_CHECKING:
    import torch

    from heddle.extensions.torch.cache import Vectors

_COLUMNS = 512

EXACT = {"enable_fp_fusion": False}
"""Options of a launch whose kernel rounds each product and each sum, as torch does."""


@triton.jit
def read(codes, scales, place, element, width, inside, KIND: tl.constexpr):
    """Elements of the vectors at some places, in float16; 0 where `inside` is false.

    `place` and `element` have the shape of the result. A vector has `width` elements.
    """
    at = place * width + element
    if KIND == "float16":
        found = tl.load(codes + at, mask=inside, other=0.0)
    elif KIND == "int8":
        scale = tl.load(scales + at // 32, mask=inside, other=0.0).to(tl.float32)
        found = (tl.load(codes + at, mask=inside, other=0).to(tl.float32) * scale).to(tl.float16)
    else:
        # E4M3 as float16: 3 bits of fraction and 4 of exponent, whose bias is less by 8.
        byte = tl.load(codes + at, mask=inside, other=0).to(tl.int16)
        bits = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
        found = bits.to(tl.float16, bitcast=True) * 256.0
        found = tl.where((byte & 0x7F) == 0x7F, float("nan"), found).to(tl.float16)
    return found


def fields(vectors: Vectors) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Codes, scales (or codes again) and the kind that :func:`read` takes."""
    codes, *rest = vectors.fields
    return codes, rest[0] if rest else codes, str(codes.dtype).removeprefix("torch.")


@triton.jit
def _is_finite(x):
    return tl.abs(x) <= 3.4028234663852886e38


@triton.jit
def _fp8(x):
    """Numbers as bytes of E4M3: to nearest, ties to even; at most 448."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)  # 448.0
    # Beside 2**14, float32 numbers lie 2**-9 apart, as the numbers of E4M3 below 2**-6 do.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    other = (size - 0x3C000000 + 0x7FFFF + ((size >> 20) & 1)) >> 20
    code = tl.where(size < 0x3C800000, small, other) | ((bits >> 24) & 0x80)
    return tl.where(_is_finite(x), code, 0x7F).to(tl.uint8)


@triton.jit
def _q8_0(x):
    """Codes (n, 32) and scales (n,) of blocks. One that is not finite gets such a scale."""
    size = tl.abs(x)
    is_nan = (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) > 0x7F800000
    peak = tl.max(tl.where(is_nan, 0.0, size), 1)
    peak = tl.where(tl.max(is_nan.to(tl.int32), 1) > 0, float("nan"), peak)
    steps = tl.div_rn(127.0, tl.where(peak == 0.0, 1.0, peak))
    steps = tl.where(_is_finite(steps), steps, 0.0)
    product = tl.where(_is_finite(x), x * steps[:, None], 0.0)
    # Beside 1.5 * 2**23, float32 numbers are the integers.
    codes = (product + 12582912.0) - 12582912.0
    return codes.to(tl.int8), tl.div_rn(peak, 127.0).to(tl.float16)


@triton.jit
def write(codes, scales, at, x, inside, KIND: tl.constexpr):
    """Keep elements x (m, n), float32, at places `at` of the codes, where `inside` is true.

    Each 32 elements of a row are a block of q8_0. A kernel that calls this must not fuse products
    and sums: see `EXACT`.
    """
    if KIND == "float16":
        tl.store(codes + at, x.to(tl.float16), mask=inside)
    elif KIND == "int8":
        blocks: tl.constexpr = x.shape[0] * x.shape[1] // 32
        found, scale = _q8_0(tl.reshape(x, (blocks, 32)))
        at = tl.reshape(at, (blocks, 32))
        inside = tl.reshape(inside.to(tl.int32), (blocks, 32))
        tl.store(codes + at, found, mask=inside > 0)
        tl.store(scales + tl.min(at, 1) // 32, scale, mask=tl.min(inside, 1) > 0)
    else:
        tl.store(codes + at, _fp8(x), mask=inside)


@triton.jit
def _store(
    key_codes, key_scales, value_codes, value_scales, places, k, v, k_width, v_width,
    JOINED: tl.constexpr, KIND: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A part of the key of one token, and of its value; or of a key whose end is `v`."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    key = tl.load(k + token * k_width + column, mask=column < k_width, other=0.0)
    if JOINED:
        width = k_width + v_width
        rest = (column >= k_width) & (column < width)
        end = tl.load(v + token * v_width + column - k_width, mask=rest, other=0.0)
        key = tl.where(rest, end, key)
        write(key_codes, key_scales, place * width + column, key, column < width, KIND)
    else:
        write(key_codes, key_scales, place * k_width + column, key, column < k_width, KIND)
        value = tl.load(v + token * v_width + column, mask=column < v_width, other=0.0)
        write(value_codes, value_scales, place * v_width + column, value, column < v_width, KIND)


def store(
    parts: tuple[Vectors, ...], places: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Keep the first rows of k and v (T, n) at places of pages.

    If values are a part of the keys, so that there is one part, its vectors are k and v joined.
    """
    key_codes, key_scales, kind = fields(parts[0])
    value_codes, value_scales, _ = fields(parts[-1])
    widths, joined = (k.shape[1], v.shape[1]), len(parts) == 1
    columns = sum(widths) if joined else max(widths)
    _store[len(places), cdiv(columns, _COLUMNS)](
        key_codes, key_scales, value_codes, value_scales, places, k.contiguous(), v.contiguous(),
        *widths, JOINED=joined, KIND=kind, COLUMNS=_COLUMNS, **EXACT,
    )  # fmt: skip
