"""Rotation of heads by position, from a table of cosines and sines.

Before attention, one kernel rotates queries and keys, and stores keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.operands import Operand, inverse, power_of_two
from heddle.extensions.torch.kernels.pages import EXACT, fields, write
from heddle.extensions.torch.tiles import cdiv, power_of_two_from

if TYPE_CHECKING:
    from heddle.extensions.torch.cache import Vectors
    from heddle.models.ops import RopeSpec


_ELEMENTS = 512
"""Elements that a program rotates: some heads of a token."""


@triton.jit
def rotated(x, at, element, inside, turns, first, half, INTERLEAVED: tl.constexpr):
    """Elements of x at `at`, rotated. A kernel that calls this has the options `EXACT`.

    Args:
        at: places of the elements (heads, elements), of which those `inside` are read.
        element: numbers of the elements in their head.
        turns: the cosines, and then the sines, of the position.
        first, half: the first element of a head that is rotated, and the number of pairs.
    """
    number = element - first
    turned = (number >= 0) & (number < 2 * half)
    if INTERLEAVED:
        pair, is_second, step = number // 2, number % 2 == 1, 1
    else:
        pair, is_second, step = number % half, number >= half, half
    cos = tl.load(turns + pair, mask=turned, other=0.0)
    sin = tl.load(turns + half + pair, mask=turned, other=0.0)
    own = tl.load(x + at, mask=inside, other=0.0)
    other = tl.load(x + at + tl.where(is_second, -step, step), mask=inside & turned, other=0.0)
    found = own * cos + tl.where(is_second, other, -other) * sin
    return tl.where(turned, found, own)


@triton.jit
def _rotate(
    y, x, positions, table, heads, head_dim, first, half,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Some heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    turns = table + tl.load(positions + token) * 2 * half
    head, element = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, ELEMENTS)[None, :]
    inside = (head < heads)[:, None] & (element < head_dim)
    at = (token * heads + head)[:, None] * head_dim + element
    found = rotated(x, at, element, inside, turns, first, half, INTERLEAVED)
    tl.store(y + at, found, mask=inside)


def rotate(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, spec: RopeSpec, heads: int
) -> torch.Tensor:
    """Rotate x (T, heads * head_dim); table (positions, 2, dim / 2) has cosines, then sines."""
    y, head_dim = torch.empty_like(x), x.shape[1] // heads
    elements, block = _tile(head_dim)
    _rotate[len(x), cdiv(heads, block)](
        y, x.contiguous(), positions, table, heads, head_dim, spec.first, spec.dim // 2,
        INTERLEAVED=spec.interleaved, HEADS=block, ELEMENTS=elements, **EXACT,
    )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["count"])
def _rotate_and_store(
    asked, factors, q, k, v, positions, places, table,
    key_codes, key_scales, value_codes, value_scales,
    count, heads, kv_heads, head_dim, first, half,
    INTERLEAVED: tl.constexpr, KIND: tl.constexpr, HEADS: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Some heads of one token: of its query, key or value."""
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    turns = table + tl.load(positions + token) * 2 * half
    element = tl.arange(0, ELEMENTS)[None, :]
    of_queries, of_keys = tl.cdiv(heads, HEADS), tl.cdiv(kv_heads, HEADS)
    if block < of_queries:
        head = block * HEADS + tl.arange(0, HEADS)
        inside = (head < heads)[:, None] & (element < head_dim)
        row = token * heads + head
        at = row[:, None] * head_dim + element
        x = rotated(q, at, element, inside, turns, first, half, INTERLEAVED)
        power = power_of_two(tl.max(tl.abs(x), 1))
        tl.store(factors + row, power, mask=head < heads)
        tl.store(asked + at, (x * inverse(power)[:, None]).to(tl.float16), mask=inside)
    elif token < count:
        head = (block - of_queries) % of_keys * HEADS + tl.arange(0, HEADS)
        inside = (head < kv_heads)[:, None] & (element < head_dim)
        column = head[:, None] * head_dim + element
        width = kv_heads * head_dim
        at, to = token * width + column, tl.load(places + token) * width + column
        if block < of_queries + of_keys:
            x = rotated(k, at, element, inside, turns, first, half, INTERLEAVED)
            write(key_codes, key_scales, to, x, inside, KIND)
        else:
            x = tl.load(v + at, mask=inside, other=0.0)
            write(value_codes, value_scales, to, x, inside, KIND)


def rotate_and_store(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    spec: RopeSpec,
    heads: int,
    kv_heads: int,
    parts: tuple[Vectors, Vectors],
    places: torch.Tensor,
) -> Operand:
    """Rotate q (T, heads * head_dim) and k, and keep the first rows of k and v at places of pages.

    Returns the heads of q (T * heads, head_dim) as operands.
    """
    head_dim = q.shape[1] // heads
    elements, block = _tile(head_dim)
    asked = torch.empty(len(q) * heads, head_dim, dtype=torch.float16, device=q.device)
    factors = q.new_empty(len(asked))
    key_codes, key_scales, kind = fields(parts[0])
    value_codes, value_scales, _ = fields(parts[1])
    blocks = cdiv(heads, block) + 2 * cdiv(kv_heads, block)
    _rotate_and_store[len(q), blocks](
        asked, factors, q.contiguous(), k.contiguous(), v.contiguous(), positions, places, table,
        key_codes, key_scales, value_codes, value_scales,
        len(places), heads, kv_heads, head_dim, spec.first, spec.dim // 2,
        INTERLEAVED=spec.interleaved, KIND=kind, HEADS=block, ELEMENTS=elements, **EXACT,
    )  # fmt: skip
    return Operand(asked, factors)


def _tile(head_dim: int) -> tuple[int, int]:
    """How many elements of how many heads a program has room for."""
    elements = power_of_two_from(head_dim)
    return elements, max(1, _ELEMENTS // elements)
