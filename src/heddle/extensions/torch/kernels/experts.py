"""Experts: tokens in tiles of one expert, and the sum of each token's experts.

Nothing here waits for the device: the number of tiles is the most that the choices can need.

The floor of a step is the bytes of the experts in use. The tiles of an expert run side by side, so
the first one reads the weights from memory, and the others from the cache. An expert of
Qwen3-30B-A3B in Q4_K has 3 * 768 * 2048 weights in 2.65 MB. A prompt of 512 tokens uses all 128
experts: 340 MB a layer, or 71 us at 4.8 TB/s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.matmul import Tiles
from heddle.extensions.torch.kernels.routing import tiles_of_experts
from heddle.extensions.torch.tiles import TILE, cdiv

_COLUMNS = 512


class Choices(NamedTuple):
    """Tokens sorted by expert, in slots. The slots of a tile belong to one expert.

    Attributes:
        of_tokens: reads tokens, writes slots.
        of_slots: reads and writes slots.
        slots: the slot (T, used) of each choice; -1: it is left out.
    """

    of_tokens: Tiles
    of_slots: Tiles
    slots: torch.Tensor

    @property
    def size(self) -> int:
        """Number of slots."""
        return len(self.of_slots.sources)


def sort_choices(
    chosen: torch.Tensor, first: int, experts: int, tokens: torch.Tensor, *, of: int = 0
) -> Choices:
    """Sort the choices (T, used) of `experts` experts from `first` on; others are left out.

    Tokens from `tokens` (1,) on are padding. The choices are among `of` experts; 0: `experts`.
    """
    sources, places, matrices, firsts, slots = tiles_of_experts(chosen, first, experts, tokens)
    each = -(-chosen.numel() // ((of or experts) * TILE))
    targets = torch.arange(len(sources), device=chosen.device)
    return Choices(
        Tiles(sources, targets, matrices, firsts, each),
        Tiles(places, targets, matrices, firsts, each),
        slots,
    )


@triton.jit
def _combine(y, slots, factors, down, used, width, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    acc = tl.zeros((COLUMNS,), tl.float32)
    for number in range(0, used):
        slot = tl.load(slots + token * used + number)
        factor = tl.load(factors + token * used + number)
        reach = tl.where(slot >= 0, width, 0)
        own = tl.load(down + slot * width + columns, mask=columns < reach, other=0.0)
        acc += factor * own
    tl.store(y + token * width + columns, acc, mask=inside)


def combine(choices: Choices, factors: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Each token's sum of its experts' results, times their factors, in the order of the choices.

    factors (T, used), down (slots, width); returns (T, width). Choices that are left out add
    nothing.
    """
    (tokens, used), width = factors.shape, down.shape[1]
    y = torch.empty(tokens, width, device=down.device)
    grid = (tokens, cdiv(width, _COLUMNS))
    _combine[grid](y, choices.slots, factors.contiguous(), down, used, width, COLUMNS=_COLUMNS)
    return y
