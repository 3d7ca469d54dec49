"""Feed-forward layers that cut most of their gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.extensions.gemma3n.streams import NEARLY_ZERO
from heddle.models.feed_forward import GatedMLP, GatedMLPWeights

if TYPE_CHECKING:
    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class SparseMLPWeights(Generic[W]):
    """The matrices, and vectors that give z and z - cut from a layer norm."""

    mlp: GatedMLPWeights[W]
    ones: W
    zeros: W
    minus_cut: W


@dataclass(frozen=True, slots=True)
class SparseMLP:
    """A gated feed-forward layer that keeps the largest gates, as if gates were normal.

    Gemma 3n's "Gaussian top-k": gates below their mean plus `cut` standard deviations become 0,
    and the others lose as much. With z = (gate - mean) / deviation that is deviation * max(z - cut,
    0), and the deviation is the mean of gate * z.
    """

    width: int
    hidden: int
    activation: str
    cut: float

    def load(self, loader: Loader[W], name: str) -> SparseMLPWeights[W]:
        """Claim the tensors under `name`."""
        return SparseMLPWeights(
            GatedMLP(self.width, self.hidden, self.activation).load(loader, name),
            loader.filled(self.hidden),
            loader.filled(self.hidden, 0.0),
            loader.filled(self.hidden, -self.cut),
        )

    def forward(self, ops: Ops[A, W], weights: SparseMLPWeights[W], x: A) -> A:
        """Map normed x (T, width) to (T, width)."""
        gate, up = ops.linear(x, weights.mlp.gate), ops.linear(x, weights.mlp.up)
        z = ops.layer_norm(gate, weights.ones, weights.zeros, NEARLY_ZERO)
        deviation = ops.scale(ops.mix_heads(gate, z, heads=self.hidden), 1 / self.hidden)
        above = ops.layer_norm(gate, weights.ones, weights.minus_cut, NEARLY_ZERO)
        kept = ops.gate_rows(ops.activate(above, "relu"), deviation, "identity")
        return ops.linear(ops.gated(kept, up, self.activation), weights.mlp.down)
