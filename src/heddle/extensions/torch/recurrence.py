"""Convolutions and selective scans of consecutive tokens on torch tensors.

Each element has its own sum of taps, and each token of a scan is computed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from heddle.extensions.torch.functions import exp, total

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


class Scanned(NamedTuple):
    """Consecutive tokens (T, ...) of one sequence; see `heddle.models.ops.Ops.selective_scan`."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    step: torch.Tensor


def scan(
    inputs: Scanned, rates: torch.Tensor, state: torch.Tensor, certain: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A selective scan with `rates` (m, n), without the skipped values.

    `state` is the flat state (m, n) before the tokens. Returns y (T, n), the state after `certain`
    tokens and the state after all.
    """
    y, now = torch.empty_like(inputs.v), state.view(rates.shape)
    kept = now
    for t, (q, k, v, step) in enumerate(zip(*inputs, strict=True)):
        now = exp(step * rates) * now + k[:, None] * (step * v)
        y[t] = total(q[:, None] * now, 0)[0]
        if t + 1 == certain:
            kept = now
    return y, kept.flatten(), now.flatten()
