"""Activations of elements, alone or as gates of others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from heddle.extensions.torch.kernels.operands import (
    Operand,
    empty_operand,
    operand,
    store_operand,
    whole_rows,
)
from heddle.extensions.torch.tiles import cdiv

_BLOCK = 1024
_WIDEST = 1 << 15
"""Most elements of a row that a program holds."""


@triton.jit
def at_most(x, limit):
    """The smaller one. On a GPU, `tl.minimum` alone turns NaN into the limit."""
    return tl.minimum(x, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def at_least(x, limit):
    """The larger one, or NaN."""
    return tl.maximum(x, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(at_most(-x, 88.0)))


@triton.jit
def _xielu_tail(x):
    """exp(y) - 1 - x below zero, with y = min(x, -1e-6): near zero, a polynomial of y."""
    y = tl.where(x > -1e-6, -1e-6, x)
    p = 1.0 / 720 + y * (1.0 / 5040 + y * (1.0 / 40320 + y * (1.0 / 362880)))
    p = 0.5 + y * (1.0 / 6 + y * (1.0 / 24 + y * (1.0 / 120 + y * p)))
    beyond = tl.where(y > -0.5, p * y * y, tl.exp(y) - 1.0 - y)
    return tl.where(x > 0.0, 0.0, beyond + (y - x))


@triton.jit
def activated(x, other, KIND: tl.constexpr):
    """The activation of x, times the other value."""
    if KIND == "silu":
        found = x * sigmoid(x)
    elif KIND == "gelu":  # x * sigmoid(2u) = 0.5 * x * (1 + tanh(u))
        found = x * sigmoid((x + x * x * x * 0.044715) * 1.5957691216057308)
    elif KIND == "gelu_erf":
        found = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "relu":
        found = at_least(x, 0.0)
    elif KIND == "tanh":
        found = 2.0 * sigmoid(2.0 * x) - 1.0
    elif KIND == "sigmoid":
        found = sigmoid(x)
    elif KIND == "clamped":
        x = at_most(x, 7.0)
        found = x * sigmoid(x * 1.702)
        other = at_most(at_least(other, -7.0), 7.0) + 1.0
    elif KIND == "silu_to_7":
        found = at_most(x * sigmoid(x), 7.0)
        other = at_most(at_least(other, -7.0), 7.0)
    elif KIND == "silu_to_16":
        found = at_most(x * sigmoid(x), 16.0)
        other = at_most(at_least(other, -16.0), 16.0)
    elif KIND == "squared_relu":
        x = at_least(x, 0.0)
        found = x * x
    elif KIND == "xielu_tail":
        found = _xielu_tail(x)
    else:
        found = x
    return found * other


@triton.jit
def _activate(y, gate, up, count, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(gate + at, mask=at < count, other=0.0)
    other = tl.full((BLOCK,), 1.0, tl.float32)
    if GATED:
        other = tl.load(up + at, mask=at < count, other=0.0)
    tl.store(y + at, activated(x, other, KIND), mask=at < count)


@triton.jit
def _gate(
    y, values, factors, gate, up, count, width,
    ACTIVATION: tl.constexpr, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `_activate`, also as an operand of type `KIND`. A row is whole in one program."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (rows < count)[:, None] & (at < width)[None, :]
    places = rows[:, None] * width + at[None, :]
    x = tl.load(gate + places, mask=inside, other=0.0)
    other = tl.load(up + places, mask=inside, other=0.0)
    found = activated(x, other, ACTIVATION)
    tl.store(y + places, found, mask=inside)
    found = tl.where(inside, found, 0.0)
    store_operand(values, factors, found, rows, count, places, inside, KIND)


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up; see `heddle.models.ops.Ops.gated`."""
    return _run(gate.contiguous(), up.contiguous(), activation, is_gated=True)


def gated_operand(
    gate: torch.Tensor, up: torch.Tensor, activation: str, kind: torch.dtype
) -> tuple[torch.Tensor, Operand]:
    """As `gated`, for gates (T, n); also the result as an operand of type `kind`."""
    width = gate.shape[1]
    if kind is torch.float32 or width > _WIDEST:
        y = gated(gate, up, activation)
        return y, operand(y, kind)
    gate, up = gate.contiguous(), up.contiguous()
    y = torch.empty_like(gate)
    own = empty_operand(y, kind)
    grid, tile = whole_rows(*gate.shape)
    name = str(kind).removeprefix("torch.")
    pointers = y, own.values, y if own.factors is None else own.factors, gate, up
    _gate[grid](*pointers, *gate.shape, ACTIVATION=activation, KIND=name, **tile)
    return y, own


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(x); see `heddle.models.ops.Ops.activate`."""
    x = x.contiguous()
    return _run(x, x, activation, is_gated=False)


def _run(x: torch.Tensor, up: torch.Tensor, activation: str, *, is_gated: bool) -> torch.Tensor:
    y, count = torch.empty_like(x), x.numel()
    grid = (cdiv(count, _BLOCK),)
    _activate[grid](y, x, up, count, KIND=activation, GATED=is_gated, BLOCK=_BLOCK)
    return y
