"""Recurrences on torch tensors, one token after the other.

So the state at a position never depends on chunks. Each token is computed with elementwise
functions and sums of halves (`functions.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.executors.torch.functions import total

if TYPE_CHECKING:
    from heddle.executors.torch.weights import Filters
    from heddle.models.ops import LinearAttentionSpec


_STATES = 1 << 18
"""Most elements of the states of some tokens, whose results are read from them in one call: 1 MB,
which a cache holds."""


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


def linear_attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    strength: torch.Tensor,
    state: torch.Tensor,
    spec: LinearAttentionSpec,
    certain: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Linear attention of consecutive tokens of one sequence; see `Ops.linear_attend`.

    Returns y (T, heads * value_dim), the state after `certain` tokens, and the state after all.
    """
    tokens, heads = len(v), spec.heads
    key_heads = [spec.key_head(head) for head in range(heads)]
    queries = q.reshape(tokens, -1, spec.key_dim)[:, key_heads, :, None]
    keys = k.reshape(tokens, -1, spec.key_dim)[:, key_heads, :, None]
    values = v.reshape(tokens, heads, 1, spec.value_dim)
    factors, strengths = decay.reshape(tokens, heads, -1, 1), strength[..., None, None]
    own = state.reshape(heads, spec.key_dim, spec.value_dim)
    most = min(max(1, _STATES // own.numel()), tokens)
    states = own.new_empty(most, *own.shape)
    kept, y = own, torch.empty_like(values)
    for first in range(0, tokens, most):
        block = slice(first, first + most)
        steps = zip(
            states, factors[block], keys[block], values[block], strengths[block], strict=False
        )
        for count, (after, factor, key, value, strength_of_token) in enumerate(steps, first + 1):
            torch.mul(own, factor, out=after)
            change = value - total(after * key, 1) if spec.corrects else value
            own = after.add_(key * (strength_of_token * change))
            if count == certain:
                kept = own.clone()
        asked = queries[block]
        y[block] = total(states[: len(asked)] * asked, 2)
    return y.reshape(v.shape), kept.flatten(), own.flatten()
