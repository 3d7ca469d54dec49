"""The Mamba-2 mixer: a state that decays by a factor for each head and token.

Dao & Gu 2024 (arXiv:2405.21060). One matrix makes gates, values (x), keys (B), queries (C) and step
sizes. Values, keys and queries pass a short convolution. The gated result is normed by groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from heddle.models.fixed_state import fixed_state
from heddle.models.ops import LinearAttentionSpec

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops, StatePlace
    from heddle.state import Fixed, StateKind
    from heddle.weights.checkpoint import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Mamba2Weights(Generic[W]):
    """`inputs` make gates, values, keys, queries and step sizes. `filters` are of the three."""

    inputs: W
    filters: tuple[W, ...]
    step_bias: W
    rates: W
    skip: W
    norm: W
    output: W


@dataclass(frozen=True, slots=True)
class Mamba2:
    """See the module.

    Attributes:
        width: width of the hidden state.
        spec: heads; their groups are heads of queries and keys.
        taps: positions that the convolution sees, the token itself included.
        norm_eps: epsilon of the norm of results.
    """

    part: ClassVar[str] = "mixer"

    width: int
    spec: LinearAttentionSpec
    taps: int
    norm_eps: float

    @property
    def _streams(self) -> tuple[int, int, int]:
        """Widths of values, keys and queries."""
        keys = self.spec.key_heads * self.spec.key_dim
        return self.spec.heads * self.spec.value_dim, keys, keys

    def _places(self, layer: int) -> tuple[Fixed, list[StatePlace]]:
        """The state, and the places of the three convolutions and of the matrices."""
        inputs = ((self.taps - 1) * stream for stream in self._streams)
        return fixed_state(layer, [*inputs, self.spec.state_count])

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See `heddle.models.blocks.Mixer`."""
        assert causal, "a recurrence sees no later tokens"
        return (self._places(0)[0],)

    def load(self, loader: Loader[W], name: str) -> Mamba2Weights[W]:
        """Claim the tensors under `name`, with biases if the checkpoint has them."""
        heads, width, streams = self.spec.heads, self.width, self._streams
        inner = streams[0]
        return Mamba2Weights(
            inputs=loader.linear(f"{name}.inputs", inner + sum(streams) + heads, width),
            filters=loader.filters(f"{name}.conv", streams, self.taps),
            step_bias=loader.vector(f"{name}.step_bias", heads),
            rates=loader.vector(f"{name}.decay_rates", heads),
            skip=loader.vector(f"{name}.skip", heads),
            norm=loader.vector(f"{name}.norm", inner),
            output=loader.linear(f"{name}.output", width, inner),
        )

    def forward(
        self, ops: Ops[A, W], weights: Mamba2Weights[W], x: A, positions: A, layer: int
    ) -> A:
        """From normed x (T, width) to (T, width)."""
        spec, (_, places) = self.spec, self._places(layer)
        mixed, inner = ops.linear(x, weights.inputs), self._streams[0]
        gate, first, streams = ops.take_columns(mixed, 0, inner), inner, []
        for width, filters, place in zip(self._streams, weights.filters, places, strict=False):
            taken = ops.take_columns(mixed, first, width)
            streams.append(ops.causal_conv(taken, filters, place, "silu"))
            first += width
        values, keys, queries = streams
        step = ops.take_columns(mixed, first, spec.heads)
        step = ops.step_size(step, weights.step_bias, 0.0, math.inf)
        decay = ops.decay(step, weights.rates)
        y = ops.linear_attend(queries, keys, values, decay, step, places[3], spec, weights.skip)
        y = ops.gated(gate, y, "silu")
        y = ops.norm_heads(y, weights.norm, self.norm_eps, spec.key_heads)
        return ops.linear(y, weights.output)


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
