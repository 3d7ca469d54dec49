"""The streams of hidden states that Gemma 3n has in the place of one (AltUp).

Baykal et al. 2023 (arXiv:2301.13310). A layer computes one stream, the active one. Before it, all
streams are predicted from one another; after it, all are corrected by how far the result is from
its prediction. The factors depend on the token. All streams lie beside each other: (T, count *
width).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")

NEARLY_ZERO = 1e-12
"""Epsilon of norms that only divide by the magnitude. It changes no float32 of real models."""


@dataclass(frozen=True, slots=True)
class LayerStreamWeights(Generic[W]):
    router_norm: W
    router: W
    prediction: W
    correction: W


@dataclass(frozen=True, slots=True)
class StreamWeights(Generic[W]):
    """Matrices of all streams but the first, and ones."""

    spread: W
    merge: W
    ones: W


@dataclass(frozen=True, slots=True)
class Streams:
    """
    Attributes:
        count: number of streams, 2 or more.
        active: index of the stream that layers compute.
        width: elements of a stream.
        norm_eps: epsilon of the router's norm.
    """

    count: int
    active: int
    width: int
    norm_eps: float

    def load(self, loader: Loader[W]) -> StreamWeights[W]:
        """Claim the tensors outside of the layers."""
        others, width = self.count - 1, self.width
        return StreamWeights(
            loader.experts("streams.spread", others, width, width),
            loader.experts("streams.merge", others, width, width),
            loader.filled(width),
        )

    def load_layer(self, loader: Loader[W], name: str) -> LayerStreamWeights[W]:
        """Claim the tensors of the layer `name`."""
        name, count = f"{name}.streams", self.count
        return LayerStreamWeights(
            loader.vector(f"{name}.router_norm", self.width),
            loader.linear(f"{name}.router", count, self.width),
            loader.linear(f"{name}.prediction", count * count, count),
            loader.linear(f"{name}.correction", count, count),
        )

    # --- around the layers

    def spread(self, ops: Ops[A, W], weights: StreamWeights[W], x: A) -> A:
        """The streams of embeddings x (T, width): x, and others of its magnitude."""
        others = ops.head_linear(self._repeated(ops, x, self.count - 1), weights.spread)
        others = self._of_magnitude_one(ops, weights, others)
        magnitude = self._magnitude(ops, weights, x)
        return ops.join(x, ops.gate_rows(others, magnitude, "identity"))

    def merge(self, ops: Ops[A, W], weights: StreamWeights[W], streams: A) -> A:
        """The mean (T, width) of all streams, each with the magnitude of the first."""
        others = self.count - 1
        first = ops.take_columns(streams, 0, self.width)
        magnitudes = self._repeated(ops, self._magnitude(ops, weights, first), others)
        rest = ops.head_linear(self._rest(ops, streams), weights.merge)
        rest = self._of_magnitude_one(ops, weights, rest)
        total = ops.add(first, ops.mix_heads(rest, magnitudes, heads=others))
        return ops.scale(total, 1 / self.count)

    def _of_magnitude_one(self, ops: Ops[A, W], weights: StreamWeights[W], others: A) -> A:
        return ops.norm_heads(others, weights.ones, NEARLY_ZERO, self.count - 1)

    def _magnitude(self, ops: Ops[A, W], weights: StreamWeights[W], x: A) -> A:
        """The root of the mean square (T, 1) of x (T, width)."""
        product = ops.mix_heads(x, ops.norm(x, weights.ones, NEARLY_ZERO), heads=self.width)
        return ops.scale(product, 1 / self.width)

    # --- in a layer

    def active_of(self, ops: Ops[A, W], streams: A) -> A:
        """The active stream (T, width)."""
        return ops.take_columns(streams, self.active * self.width, self.width)

    def predict(self, ops: Ops[A, W], weights: LayerStreamWeights[W], streams: A) -> A:
        """The streams as they would be after the layer."""
        factors = self._routed(ops, weights, self.active_of(ops, streams))
        factors = ops.linear(factors, weights.prediction)
        return ops.add(streams, ops.mix_heads(streams, factors, heads=self.count))

    def correct(self, ops: Ops[A, W], weights: LayerStreamWeights[W], predicted: A, result: A) -> A:
        """The streams after the layer, whose result is (T, width)."""
        error = ops.add(result, ops.scale(self.active_of(ops, predicted), -1.0))
        factors = ops.linear(self._routed(ops, weights, result), weights.correction)
        change = ops.mix_heads(error, factors, heads=1)
        change = ops.add(change, self._repeated(ops, error, self.count))
        return ops.add(predicted, change)

    def add_to_rest(self, ops: Ops[A, W], streams: A, x: A) -> A:
        """The streams, all but the first with x (T, width) added."""
        first = ops.take_columns(streams, 0, self.width)
        rest = ops.add(self._rest(ops, streams), self._repeated(ops, x, self.count - 1))
        return ops.join(first, rest)

    def _routed(self, ops: Ops[A, W], weights: LayerStreamWeights[W], x: A) -> A:
        """What factors are made of (T, count)."""
        x = ops.scale(ops.norm(x, weights.router_norm, self.norm_eps), 1 / self.width)
        return ops.soft_cap(ops.linear(x, weights.router), 1.0)  # tanh

    def _rest(self, ops: Ops[A, W], streams: A) -> A:
        """All streams but the first."""
        return ops.take_columns(streams, self.width, (self.count - 1) * self.width)

    def _repeated(self, ops: Ops[A, W], x: A, times: int) -> A:
        """The columns of x, several times."""
        repeated = x
        for _ in range(times - 1):
            repeated = ops.join(repeated, x)
        return repeated
