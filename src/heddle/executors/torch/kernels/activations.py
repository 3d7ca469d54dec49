"""Activations of elements, alone or as gates of others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(tl.minimum(-x, 88.0)))


@triton.jit
def _activate(y, gate, up, count, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(gate + at, mask=at < count, other=0.0)
    other = tl.full((BLOCK,), 1.0, tl.float32)
    if GATED:
        other = tl.load(up + at, mask=at < count, other=0.0)
    if KIND == "silu":
        found = x * sigmoid(x)
    elif KIND == "gelu":  # x * sigmoid(2u) = 0.5 * x * (1 + tanh(u))
        found = x * sigmoid((x + x * x * x * 0.044715) * 1.5957691216057308)
    elif KIND == "sigmoid":
        found = sigmoid(x)
    elif KIND == "clamped":
        x = tl.minimum(x, 7.0)
        found = x * sigmoid(x * 1.702)
        other = tl.minimum(tl.maximum(other, -7.0), 7.0) + 1.0
    elif KIND == "squared_relu":
        x = tl.maximum(x, 0.0)
        found = x * x
    else:
        found = x
    tl.store(y + at, found * other, mask=at < count)


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up; see `heddle.models.ops.Ops.gated`."""
    return _run(gate.contiguous(), up.contiguous(), activation, is_gated=True)


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(x); see `heddle.models.ops.Ops.activate`."""
    x = x.contiguous()
    return _run(x, x, activation, is_gated=False)


def _run(x: torch.Tensor, up: torch.Tensor, activation: str, *, is_gated: bool) -> torch.Tensor:
    y, count = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(count, _BLOCK),)
    _activate[grid](y, x, up, count, KIND=activation, GATED=is_gated, BLOCK=_BLOCK)
    return y
