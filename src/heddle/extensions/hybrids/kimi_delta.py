"""Kimi delta attention: a gated delta net whose state decays by a factor for each row.

Kimi Team 2025 (arXiv:2510.26692, section 3; `transformers`, `models/kimi_linear`). Queries, keys
and values have a matrix and a short convolution each. Decays and output gates are made through a
narrow vector. The result of a head is normed, then multiplied by the sigmoid of its gate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.extensions.hybrids.delta_net import NORM_EPS
from heddle.extensions.hybrids.linear_mixer import LinearMixer
from heddle.models.ops import LinearAttentionSpec

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_STREAMS = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class KimiDeltaWeights(Generic[W]):
    """`streams` make queries, keys and values, and `filters` are of their convolutions.

    `steps` and `gates` are two matrices each: to a narrow vector, and from it.
    """

    streams: tuple[W, ...]
    filters: tuple[W, ...]
    strengths: W
    steps: tuple[W, W]
    step_bias: W
    rates: W
    q_norm: W
    k_norm: W
    gates: tuple[W, W]
    norm: W
    output: W


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention(LinearMixer):
    """See the module."""

    @property
    def streams(self) -> tuple[int, int, int]:
        """Widths of queries, keys and values."""
        inner = self.spec.heads * self.spec.key_dim
        return inner, inner, inner

    def load(self, loader: Loader[W], name: str) -> KimiDeltaWeights[W]:
        """Claim the tensors of the layer `name`, with biases if the checkpoint has them."""
        name = f"{name}.attention"  # files name some of its tensors as those of attention
        width, inner, size, heads = self.width, self.streams[0], self.spec.key_dim, self.spec.heads
        length = 1 / math.sqrt(size)

        def narrow(part: str) -> tuple[W, W]:
            return (
                loader.linear(f"{name}.{part}_in", size, width),
                loader.linear(f"{name}.{part}_out", inner, size),
            )

        return KimiDeltaWeights(
            streams=tuple(loader.linear(f"{name}.{part}", inner, width) for part in _STREAMS),
            filters=tuple(
                loader.filters(f"{name}.{part}_conv", [inner], self.taps)[0] for part in _STREAMS
            ),
            strengths=loader.linear(f"{name}.beta", heads, width),
            steps=narrow("alpha"),
            step_bias=loader.vector(f"{name}.step_bias", inner),
            rates=loader.vector(f"{name}.decay_rates", heads),
            # x / |x| is the RMS norm over sqrt(size). Queries are divided by that once more.
            q_norm=loader.filled(size, length * length),
            k_norm=loader.filled(size, length),
            gates=narrow("z"),
            norm=loader.vector(f"{name}.norm", size),
            output=loader.linear(f"{name}.output", width, inner),
        )

    def forward(
        self, ops: Ops[A, W], weights: KimiDeltaWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width)."""
        spec, (_, places) = self.spec, self.places(layer)
        mixed = [ops.linear(x, stream) for stream in weights.streams]
        step, gate = (ops.linear(x, narrow) for narrow, _ in (weights.steps, weights.gates))
        strength = ops.activate(ops.linear(x, weights.strengths), "sigmoid")
        q, k, v = (
            ops.causal_conv(stream, filters, place, "silu")
            for stream, filters, place in zip(mixed, weights.filters, places, strict=False)
        )
        eps = NORM_EPS / spec.key_dim
        q = ops.norm_heads(q, weights.q_norm, eps, spec.heads)
        k = ops.norm_heads(k, weights.k_norm, eps, spec.heads)
        step = ops.linear(step, weights.steps[1])
        step = ops.step_size(step, weights.step_bias, 0.0, math.inf)
        decay = ops.decay(step, weights.rates)
        y = ops.linear_attend(q, k, v, decay, strength, places[3], spec)
        y = ops.norm_heads(y, weights.norm, self.norm_eps, spec.heads)
        gate = ops.linear(gate, weights.gates[1])
        return ops.linear(ops.gated(gate, y, "sigmoid"), weights.output)


def kimi_delta_attention(read: Hyperparameters, width: int, norm_eps: float) -> KimiDeltaAttention:
    """The mixer with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or makes no sense.
    """
    heads, size = read.integer("state.heads", read.integer("heads")), read.integer("state.key_dim")
    if size % 4:
        read.fail("state.key_dim", f"is {size}; it must be a multiple of 4")
    spec = LinearAttentionSpec(heads, heads, size, size, corrects=True)
    return KimiDeltaAttention(width, spec, read.integer("state.taps", 4), norm_eps)
