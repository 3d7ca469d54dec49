"""Reads and writes keys and values of pages inside a kernel.

`heddle.executors.torch.kv_formats` defines the formats. A vector of a position is a row of each
field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from heddle.executors.torch.cache import Vectors

_COLUMNS = 512


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
def _store(keys, values, places, k, v, k_width, v_width, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    key = tl.load(k + token * k_width + columns, mask=columns < k_width)
    tl.store(keys + place * k_width + columns, key.to(tl.float16), mask=columns < k_width)
    value = tl.load(v + token * v_width + columns, mask=columns < v_width)
    tl.store(values + place * v_width + columns, value.to(tl.float16), mask=columns < v_width)


def store(parts: tuple[Vectors, ...], places: torch.Tensor, *vectors: torch.Tensor) -> None:
    """Keep keys and values, or the keys that are both, (T, n), at places (T,) of pages."""
    if parts[0].fields[0].dtype != torch.float16 or len(parts) == 1:
        for own, rows in zip(parts, vectors, strict=True):
            own.store(places, rows[: len(places)])
        return
    (keys,), (values,), (k, v) = parts[0].fields, parts[1].fields, vectors
    widths = k.shape[1], v.shape[1]
    grid = (len(places), triton.cdiv(max(widths), _COLUMNS))
    _store[grid](keys, values, places, k.contiguous(), v.contiguous(), *widths, COLUMNS=_COLUMNS)
