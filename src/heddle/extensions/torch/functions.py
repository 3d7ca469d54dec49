"""Functions of tensors whose results do not depend on an element's place, or on its company.

torch computes `exp` and its relatives with vector code, and the elements at the end of an array
with other code, whose last bit may differ. Its sums divide an array by its shape. Here everything
is a sequence of additions, multiplications and divisions of single elements. IEEE 754 says how
these round, so the bits are the same for every shape and on every device.
"""

from __future__ import annotations

import math

import torch

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LEAST, _MOST = -88.0, 88.8
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
"""Cephes' polynomial (Moshier 1989, `expf`): exp(r) = 1 + r + r**2 * p(r) for |r| <= ln(2) / 2."""


def exp(x: torch.Tensor) -> torch.Tensor:
    """e**x of float32, with an error of 2 in the last place: 0 below -87.7, infinite above 88.4."""
    x = x.clamp(_LEAST, _MOST)  # keeps NaN
    power = (x * _LOG2_E).round()
    r = x - power * _LN2_HIGH
    r = r - power * _LN2_LOW
    p = torch.full_like(r, _EXP[0])
    for coefficient in _EXP[1:]:
        p = p * r + coefficient
    value = p * (r * r) + r + 1.0
    # The exponent's bits of 2**power; 0 and 255 mean 0 and infinity.
    bits = power.nan_to_num().to(torch.int32) + 127 << 23
    return value * bits.view(torch.float32)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + e**-x)."""
    return (exp(-x) + 1.0).reciprocal()


def tanh(x: torch.Tensor) -> torch.Tensor:
    """2 / (1 + e**-2x) - 1, with an absolute error of 1e-7."""
    return sigmoid(x * 2.0) * 2.0 - 1.0


def total(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The sum along an axis, which stays with length 1: halves are added until one is left."""
    while (count := x.shape[dim]) > 1:
        if count % 2:
            low, middle, high = x.split([count // 2, 1, count // 2], dim)
            x = torch.cat([low + high, middle], dim)
        else:
            low, high = x.chunk(2, dim)
            x = low + high
    return x


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax along the last axis."""
    weights = exp(x - x.amax(-1, keepdim=True))
    return weights / total(weights)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """ln(1 + e**x) = max(x, 0) + ln(1 + e**-|x|). A small result has all its digits.

    ln(1 + e) is twice the inverse hyperbolic tangent of s = e / (e + 2): s + s**3 / 3 + ...
    """
    e = exp(-x.abs())
    s = e / (e + 2.0)
    square = s * s
    series = torch.full_like(s, 1 / 17)
    for power in range(15, 0, -2):
        series = series * square + 1 / power
    return x.clamp(min=0.0) + s * series * 2.0


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (exp(-x) + 1.0)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """The form with tanh, as x * sigmoid(2u) = 0.5 * x * (1 + tanh(u))."""
    cubic = x * x * x * 0.044715
    return x * sigmoid((x + cubic) * 1.5957691216057308)


def erf(x: torch.Tensor) -> torch.Tensor:
    """An odd polynomial by an even one, with the coefficients of the native kernel."""
    x = x.clamp(-4.0, 4.0)
    square = x * x
    top, bottom = torch.full_like(x, _ERF_TOP[0]), torch.full_like(x, _ERF_BOTTOM[0])
    for coefficient in _ERF_TOP[1:]:
        top = top * square + coefficient
    for coefficient in _ERF_BOTTOM[1:]:
        bottom = bottom * square + coefficient
    return x * top / bottom


_ERF_TOP = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_ERF_BOTTOM = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)


def gelu_erf(x: torch.Tensor) -> torch.Tensor:
    half = x * 0.5
    return half * erf(x * 0.7071067811865476) + half


def xielu_tail(x: torch.Tensor) -> torch.Tensor:
    """exp(y) - 1 - x below zero, with y = min(x, -1e-6): near zero, a Taylor polynomial of y.

    torch's own `expm1` may differ in the last bit at the end of an array, as its `exp` does.
    """
    y = x.clamp(max=-1e-6)
    p = torch.full_like(y, 1 / math.factorial(9))
    for power in range(8, 1, -1):
        p = p * y + 1 / math.factorial(power)
    below = torch.where(y > -0.5, p * y * y, exp(y) - 1.0 - y) + (y - x)
    return torch.where(x > 0, 0.0, below)


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(x); see `heddle.models.ops.Ops.activate`."""
    match activation:
        case "tanh":
            return tanh(x)
        case "squared_relu":
            positive = x.clamp(min=0.0)
            return positive * positive
        case "xielu_tail":
            return xielu_tail(x)
    return gated(x, torch.ones_like(x), activation)


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up; see `heddle.models.ops.Ops.gated`."""
    match activation:
        case "silu":
            return silu(gate) * up
        case "gelu":
            return gelu(gate) * up
        case "gelu_erf":
            return gelu_erf(gate) * up
        case "relu":
            return gate.clamp(min=0.0) * up
        case "sigmoid":
            return sigmoid(gate) * up
        case "identity":
            return gate * up
        case "clamped":
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            return gate * sigmoid(gate * 1.702) * (up + 1.0)
        case "silu_to_7":
            return silu(gate).clamp(max=7.0) * up.clamp(-7.0, 7.0)
        case "silu_to_16":
            return silu(gate).clamp(max=16.0) * up.clamp(-16.0, 16.0)
    raise ValueError(f"no function computes activation {activation!r}")
