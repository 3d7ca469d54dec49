"""Rotation of heads by position, from a table of cosines and sines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from heddle.models.ops import RopeSpec


@triton.jit
def _rotate(
    y, x, positions, table, heads, head_dim, first, half,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """All heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    head, pair = tl.arange(0, HEADS), tl.arange(0, HALF)
    cos = tl.load(table + position * 2 * half + pair, mask=pair < half, other=0.0)[None, :]
    sin = tl.load(table + (position * 2 + 1) * half + pair, mask=pair < half, other=0.0)[None, :]
    inside = (head < heads)[:, None] & (pair < half)[None, :]
    if INTERLEAVED:
        at, step = 2 * pair, 1
    else:
        at, step = pair, half
    places = (token * heads + head)[:, None] * head_dim + first + at[None, :]
    a = tl.load(x + places, mask=inside, other=0.0)
    b = tl.load(x + places + step, mask=inside, other=0.0)
    tl.store(y + places, a * cos - b * sin, mask=inside)
    tl.store(y + places + step, a * sin + b * cos, mask=inside)


def rotate(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, spec: RopeSpec, heads: int
) -> torch.Tensor:
    """Rotate x (T, heads * head_dim); table (positions, 2, dim / 2) has cosines, then sines."""
    x = x.contiguous()
    head_dim, half = x.shape[1] // heads, spec.dim // 2
    y = torch.empty_like(x) if spec.dim == head_dim else x.clone()
    _rotate[(len(x),)](
        y, x, positions, table, heads, head_dim, spec.first, half,
        INTERLEAVED=spec.interleaved,
        HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(half),
    )  # fmt: skip
    return y
