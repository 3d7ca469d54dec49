"""Decoders of the types IQ1 to IQ3: values are points of a grid, with signs.

`heddle.weights.quants` documents the layouts. Each argument is a field of all blocks, (n, bytes).
The table at the end has the sizes of the fields.
"""

from __future__ import annotations

from functools import cache

import torch

from heddle.extensions.torch.bits import fields, half, halves, shorts
from heddle.extensions.torch.block_decoders import Block
from heddle.weights.grids import grid
from heddle.weights.tensor_types import TensorType

_SHIFT = 0.125


@cache
def _grid(name: str, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(grid(name)).to(device)


def _signs(bits: torch.Tensor, stored: int) -> torch.Tensor:
    """1 or -1 for the bits of each number, (..., n) to (..., n, 8).

    If 7 are stored, the number of minus signs is even, and the eighth follows.
    """
    minus = fields(bits, range(stored), 1)
    if stored == 7:
        minus = torch.cat([minus, minus.sum(-1, keepdim=True).to(minus.dtype) & 1], -1)
    return 1 - 2 * minus.float()


def _at_points(
    name: str, points: torch.Tensor, signs: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """scale * point * sign. Scales (n, s) belong to 256 / s consecutive values."""
    count = len(scale)
    values = _grid(name, points.device)[points.long()].reshape(count, -1)
    values = values * signs.reshape(count, -1)
    return scale[..., None] * values.reshape(*scale.shape, -1)


def _words(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and signs in words of 32 bits: the upper four bits, and four times seven bits."""
    words = raw.contiguous().view(torch.int32)
    return (words >> 28 & 15).float(), _signs(fields(words, range(0, 28, 7), 127), 7)


def _step(d: torch.Tensor, scale: torch.Tensor, factor: float) -> torch.Tensor:
    return half(d) * (0.5 + scale) * factor


def iq2_xxs(d: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    eights = groups.reshape(-1, 8, 8)
    scale, signs = _words(eights[..., 4:].reshape(len(d), -1))
    return _at_points("IQ2_XXS", eights[..., :4], signs, _step(d, scale, 0.25))


def iq2_xs(d: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    bits = shorts(packed)
    step = _step(d, halves(scale).float(), 0.25)
    return _at_points("IQ2_XS", bits & 511, _signs(bits >> 9, 7), step)


def iq2_s(
    d: torch.Tensor,
    low: torch.Tensor,
    signs: torch.Tensor,
    high: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    upper = fields(high, range(0, 8, 2), 3).flatten(1)
    points = low.int() | upper.int() << 8
    step = _step(d, halves(scale).float(), 0.25)
    return _at_points("IQ2_S", points, _signs(signs, 8), step)


def iq3_xxs(d: torch.Tensor, points: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    scale, signs = _words(words)
    return _at_points("IQ3_XXS", points, signs, _step(d, scale, 0.5))


def iq3_s(
    d: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    signs: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    points = low.int() | fields(high, range(8), 1).flatten(1).int() << 8
    step = half(d) * (1 + 2 * halves(scale).float())
    return _at_points("IQ3_S", points, _signs(signs, 8), step)


def iq1_s(d: torch.Tensor, low: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    bits = shorts(packed)
    upper = fields(bits, range(0, 12, 3), 7).reshape(-1, 32)
    points = _grid("IQ1_S", d.device)[(low.int() | upper << 8).long()].reshape(-1, 8, 32)
    step = half(d) * (2 * (bits >> 12 & 7) + 1).float()
    return step[..., None] * (points + _shifts(bits & 0x8000)[..., None])


def iq1_m(low: torch.Tensor, high: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    numbers = shorts(packed)
    d_bits = sum((numbers[:, index] >> 12) << 4 * index for index in range(4))
    d = d_bits.to(torch.int16).view(torch.float16).float()[:, None]
    scales = fields(numbers, range(0, 12, 3), 7).reshape(-1, 16)
    upper = halves(high).int()
    points = _grid("IQ1_S", low.device)[(low.int() | (upper & 7) << 8).long()]
    step = (d * (2 * scales + 1).float()).repeat_interleave(2, -1)
    return step[..., None] * (points + _shifts(upper & 8)[..., None])


def _shifts(is_down: torch.Tensor) -> torch.Tensor:
    """-1/8 where the number is not 0, else 1/8."""
    return torch.where(is_down != 0, -_SHIFT, _SHIFT).float()


BLOCKS = {
    TensorType.IQ1_S: Block((2, 32, 16), iq1_s),
    TensorType.IQ1_M: Block((32, 16, 8), iq1_m),
    TensorType.IQ2_XXS: Block((2, 64), iq2_xxs),
    TensorType.IQ2_XS: Block((2, 64, 8), iq2_xs),
    TensorType.IQ2_S: Block((2, 32, 32, 8, 8), iq2_s),
    TensorType.IQ3_XXS: Block((2, 64, 32), iq3_xxs),
    TensorType.IQ3_S: Block((2, 64, 8, 32, 4), iq3_s),
}
