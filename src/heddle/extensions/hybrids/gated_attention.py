"""Attention whose matrix of queries makes gates, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from heddle.models.blocks import Attention

if TYPE_CHECKING:
    from heddle.models.blocks import AttentionWeights
    from heddle.models.ops import Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class GatedAttention(Attention):
    """The matrix of queries makes for each head its query, then its gate.

    The result is multiplied by sigmoid(gate).
    """

    query_parts: ClassVar[int] = 2

    def forward(
        self, ops: Ops[A, W], weights: AttentionWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width). Stores its keys and values in layer `layer`."""
        assert weights.k is not None, "each layer has its own keys"
        spec, size = self.spec, self.spec.head_dim
        both = ops.linear(x, weights.q)
        gate = ops.take_columns(both, size, size, spec.heads)
        q = ops.take_columns(both, 0, size, spec.heads)
        k = ops.linear(x, weights.k)
        v = self._values(ops, weights, x, k)
        q = self._placed(ops, q, weights.q_norm, weights.q_rope, positions, spec.heads)
        k = self._placed(ops, k, weights.k_norm, weights.rope, positions, spec.kv_heads)
        y = ops.gated(gate, ops.attend(q, k, v, layer, spec, weights.sinks), "sigmoid")
        return ops.linear(y, weights.output)
