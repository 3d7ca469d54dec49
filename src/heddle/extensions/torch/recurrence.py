"""Convolutions of consecutive tokens on torch tensors. Each element has its own sum of taps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from heddle.extensions.torch.weights import Filters


def convolve(
    x: torch.Tensor, filters: Filters, state: torch.Tensor, certain: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A convolution of consecutive tokens x (T, n) of one sequence, before its activation.

    `state` is the flat state (taps - 1, n) before them. Returns y (T, n), the state after `certain`
    tokens and the state after all; see `heddle.models.ops.Ops.causal_conv`.
    """
    before = filters.values.shape[1] - 1
    past = torch.cat([state.reshape(before, -1), x])
    y = past[: len(x)] * filters.values[:, 0]
    for tap in range(1, before + 1):
        y = y + past[tap : tap + len(x)] * filters.values[:, tap]
    if filters.bias is not None:
        y = y + filters.bias
    return y, past[certain : certain + before].flatten(), past[len(x) :].flatten()
