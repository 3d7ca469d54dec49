"""The Mamba-2 mixer: a state that decays by a factor for each head and token.

Dao & Gu 2024 (arXiv:2405.21060). One matrix makes gates, values (x), keys (B), queries (C) and step
sizes. Values, keys and queries pass a short convolution. The gated result is normed by groups.
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


@dataclass(frozen=True, slots=True)
class Mamba2Weights(Generic[W]):
    """`inputs` make gates, values, keys, queries and step sizes. `filters` are of the three.

    `norm` is None if results have no norm.
    """

    inputs: W
    filters: tuple[W, ...]
    step_bias: W
    rates: W
    skip: W
    norm: W | None
    output: W


@dataclass(frozen=True, slots=True)
class Mamba2(LinearMixer):
    """See the module.

    Attributes:
        scales: factors on gates, values, keys, queries and step sizes, as `inputs` make them.
        norm_if_stored: whether results have a norm only if the checkpoint has its weights.
    """

    scales: tuple[float, ...] = (1.0,) * 5
    norm_if_stored: bool = False

    @property
    def streams(self) -> tuple[int, int, int]:
        """Widths of values, keys and queries."""
        keys = self.spec.key_heads * self.spec.key_dim
        return self.spec.heads * self.spec.value_dim, keys, keys

    def load(self, loader: Loader[W], name: str) -> Mamba2Weights[W]:
        """Claim the tensors of the layer `name`, with biases if the checkpoint has them."""
        name = f"{name}.mixer"
        heads, width, streams = self.spec.heads, self.width, self.streams
        inner = streams[0]
        has_norm = not self.norm_if_stored or loader.has(f"{name}.norm")
        return Mamba2Weights(
            inputs=loader.linear(f"{name}.inputs", inner + sum(streams) + heads, width),
            filters=loader.filters(f"{name}.conv", streams, self.taps),
            step_bias=loader.vector(f"{name}.step_bias", heads),
            rates=loader.vector(f"{name}.decay_rates", heads),
            skip=loader.vector(f"{name}.skip", heads),
            norm=loader.vector(f"{name}.norm", inner) if has_norm else None,
            output=loader.linear(f"{name}.output", width, inner),
        )

    def forward(
        self, ops: Ops[A, W], weights: Mamba2Weights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width)."""
        spec, (_, places) = self.spec, self.places(layer)
        gate, *streams, step = self._inputs(ops, ops.linear(x, weights.inputs))
        values, keys, queries = (
            ops.causal_conv(stream, filters, place, "silu")
            for stream, filters, place in zip(streams, weights.filters, places, strict=False)
        )
        step = ops.step_size(step, weights.step_bias, 0.0, math.inf)
        decay = ops.decay(step, weights.rates)
        y = ops.linear_attend(queries, keys, values, decay, step, places[3], spec, weights.skip)
        y = ops.gated(gate, y, "silu")
        if weights.norm is not None:
            y = ops.norm_heads(y, weights.norm, self.norm_eps, spec.key_heads)
        return ops.linear(y, weights.output)

    def _inputs(self, ops: Ops[A, W], mixed: A) -> list[A]:
        """Gates, values, keys, queries and step sizes, scaled."""
        taken, first = [], 0
        widths = (self.streams[0], *self.streams, self.spec.heads)
        for width, scale in zip(widths, self.scales, strict=True):
            part = ops.take_columns(mixed, first, width)
            taken.append(part if scale == 1.0 else ops.scale(part, scale))
            first += width
        return taken


def mamba2(read: Hyperparameters, width: int, norm_eps: float) -> Mamba2:
    """The mixer with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    heads, groups = read.integer("state.heads"), read.integer("state.groups", 1)
    if heads % groups:
        read.fail("state.groups", f"is {groups}, which does not divide the {heads} heads")
    key_dim = read.integer("state.key_dim")
    if key_dim % 4:
        read.fail("state.key_dim", f"is {key_dim}; it must be a multiple of 4")
    inner = read.integer("state.inner", 2 * width)
    if inner % heads:
        read.fail("state.inner", f"is {inner}, which the {heads} heads do not divide")
    spec = LinearAttentionSpec(heads, groups, key_dim, inner // heads, corrects=False)
    return Mamba2(width, spec, read.integer("state.taps", 4), norm_eps)
