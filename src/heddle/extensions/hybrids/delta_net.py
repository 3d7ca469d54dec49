"""The gated delta net: a mixer whose state is one matrix for each head.

Yang et al. 2024 (arXiv:2412.06464), as in Qwen3-Next. Queries, keys and values pass a short
convolution. Queries and keys are normed to length 1. The state decays by a factor for each head,
and a value is stored only as far as the state does not return it already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.extensions.hybrids.linear_mixer import LinearMixer
from heddle.models.ops import LinearAttentionSpec

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_UNBOUNDED = math.inf
NORM_EPS = 1e-6
"""Epsilon of the norms of queries and keys, added to the sum of squares."""


@dataclass(frozen=True, slots=True)
class DeltaNetWeights(Generic[W]):
    """`inputs` make queries, keys and values, and `z` the gates: one matrix if `z` is None.

    `strengths` and `steps` are one matrix if `steps` is None.
    """

    inputs: W
    z: W | None
    strengths: W
    steps: W | None
    filters: tuple[W, ...]
    step_bias: W
    rates: W
    q_norm: W
    k_norm: W
    norm: W
    output: W


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(LinearMixer):
    """See the module."""

    @property
    def streams(self) -> tuple[int, int, int]:
        """Widths of queries, keys and values."""
        keys = self.spec.key_heads * self.spec.key_dim
        return keys, keys, self.spec.heads * self.spec.value_dim

    def load(self, loader: Loader[W], name: str) -> DeltaNetWeights[W]:
        """Claim the tensors of the layer `name`."""
        name = f"{name}.mixer"
        spec, width, streams = self.spec, self.width, self.streams
        heads, values, every = spec.heads, streams[2], sum(streams)
        joined, paired = loader.has(f"{name}.qkvz"), loader.has(f"{name}.ba")
        inputs = ("qkvz", every + values) if joined else ("qkv", every)
        strengths = ("ba", 2 * heads) if paired else ("beta", heads)
        length = 1 / math.sqrt(spec.key_dim)
        return DeltaNetWeights(
            inputs=loader.linear(f"{name}.{inputs[0]}", inputs[1], width),
            z=None if joined else loader.linear(f"{name}.z", values, width),
            strengths=loader.linear(f"{name}.{strengths[0]}", strengths[1], width),
            steps=None if paired else loader.linear(f"{name}.alpha", heads, width),
            filters=loader.filters(f"{name}.conv", streams, self.taps),
            step_bias=loader.vector(f"{name}.step_bias", heads),
            rates=loader.vector(f"{name}.decay_rates", heads),
            # x / |x| is the RMS norm over sqrt(key_dim). Queries are divided by that once more.
            q_norm=loader.filled(spec.key_dim, length * length),
            k_norm=loader.filled(spec.key_dim, length),
            norm=loader.vector(f"{name}.norm", spec.value_dim),
            output=loader.linear(f"{name}.output", width, values),
        )

    def forward(
        self, ops: Ops[A, W], weights: DeltaNetWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width)."""
        spec, (_, places) = self.spec, self.places(layer)
        *streams, z = self._inputs(ops, weights, x)
        q, k, v = (
            ops.causal_conv(stream, filters, place, "silu")
            for stream, filters, place in zip(streams, weights.filters, places, strict=False)
        )
        eps = NORM_EPS / spec.key_dim
        q = ops.norm_heads(q, weights.q_norm, eps, spec.key_heads)
        k = ops.norm_heads(k, weights.k_norm, eps, spec.key_heads)
        strength, step = self._gates(ops, weights, x)
        strength = ops.activate(strength, "sigmoid")
        step = ops.step_size(step, weights.step_bias, 0.0, _UNBOUNDED)
        y = ops.linear_attend(q, k, v, ops.decay(step, weights.rates), strength, places[3], spec)
        y = ops.norm_heads(y, weights.norm, self.norm_eps, spec.heads)
        return ops.linear(ops.gated(z, y, "silu"), weights.output)

    def _inputs(self, ops: Ops[A, W], weights: DeltaNetWeights[W], x: A) -> tuple[A, A, A, A]:
        """Queries, keys, values and gates. One matrix for all has them by key head."""
        spec, mixed = self.spec, ops.linear(x, weights.inputs)
        keys, _, values = self.streams
        if weights.z is not None:
            q, k = ops.take_columns(mixed, 0, keys), ops.take_columns(mixed, keys, keys)
            return q, k, ops.take_columns(mixed, 2 * keys, values), ops.linear(x, weights.z)
        heads, size, own = spec.key_heads, spec.key_dim, values // spec.key_heads
        return (
            ops.take_columns(mixed, 0, size, heads),
            ops.take_columns(mixed, size, size, heads),
            ops.take_columns(mixed, 2 * size, own, heads),
            ops.take_columns(mixed, 2 * size + own, own, heads),
        )

    def _gates(self, ops: Ops[A, W], weights: DeltaNetWeights[W], x: A) -> tuple[A, A]:
        """Strengths and step sizes (T, heads), before their functions."""
        both = ops.linear(x, weights.strengths)
        if weights.steps is not None:
            return both, ops.linear(x, weights.steps)
        heads = self.spec.key_heads
        own = self.spec.heads // heads
        return ops.take_columns(both, 0, own, heads), ops.take_columns(both, own, own, heads)


def gated_delta_net(read: Hyperparameters, width: int, norm_eps: float) -> GatedDeltaNet:
    """The mixer with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    heads, key_heads = read.integer("state.heads"), read.integer("state.groups")
    if heads % key_heads:
        read.fail("state.groups", f"is {key_heads}, which does not divide the {heads} value heads")
    key_dim = read.integer("state.key_dim")
    if key_dim % 4:
        read.fail("state.key_dim", f"is {key_dim}; it must be a multiple of 4")
    inner = read.integer("state.inner", heads * key_dim)
    value_dim = read.integer("state.value_dim", inner // heads)
    tiled = read.flag("state.tiled", False)
    spec = LinearAttentionSpec(heads, key_heads, key_dim, value_dim, corrects=True, tiled=tiled)
    return GatedDeltaNet(width, spec, read.integer("state.taps", 4), norm_eps)
