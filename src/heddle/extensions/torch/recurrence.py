"""Convolutions, selective scans and RWKV's recurrence of consecutive tokens on torch tensors.

Each element has its own sum of taps, and each token of the others is computed alone.
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


def rwkv_run(
    inputs: tuple[torch.Tensor, ...],
    weights: tuple[torch.Tensor, ...],
    state: torch.Tensor,
    certain: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RWKV-7's recurrence of consecutive tokens of one sequence, one after the other.

    Returns y (T, n), the state after `certain` tokens and the state after all; see
    `heddle.models.ops.Ops.rwkv_attend`.
    """
    heads = inputs[0].shape[1] ** 2 // len(state)
    r, k, v, decay, rate = (one.reshape(len(one), heads, -1) for one in inputs)
    removal, replacement, bonus, norm, bias = (one.reshape(heads, -1) for one in weights)
    removed = k * removal
    removed = removed / total(removed * removed).sqrt().clamp(min=1e-12)
    written, k = -(rate * removed), k * ((rate - 1.0) * replacement + 1.0)
    y, matrix = torch.empty_like(v), state.reshape(heads, r.shape[2], -1)
    kept = matrix
    for t in range(len(v)):
        kept = matrix if t == certain else kept
        read = total(matrix * removed[t][:, :, None], 1)
        matrix = matrix * decay[t][:, :, None] + written[t][:, :, None] * read
        matrix = matrix + k[t][:, :, None] * v[t][:, None]
        y[t] = total(matrix * r[t][:, :, None], 1)[:, 0]
    size = y.shape[2]
    y = y - total(y) / size
    y = y / (total(y * y) / size + eps).sqrt() * norm + bias
    y = y + total(r * k * bonus) * v
    return y.flatten(1), kept.flatten(), matrix.flatten()
