"""Attention whose values may be narrower than keys, and whose results may have gates.

The KV cache stores keys and values of one size. So zeros follow each value, and the same number of
columns is dropped from the result of each head. A zero changes no sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.errors import ModelFileError
from heddle.state import KvShape, Pages, Window

if TYPE_CHECKING:
    from heddle.models.ops import AttentionSpec, Loader, Ops, RopeSpec
    from heddle.state import StateKind

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class UnevenWeights(Generic[W]):
    """Weights of attention. What a layer lacks is None.

    `sinks` are a score for each head. `gate` makes the gates, and `zeros` are as many zeros if
    their activation is softplus. `rope` is the rotation, with the checkpoint's divisors of
    frequencies.
    """

    q: W
    k: W
    v: W
    output: W
    q_norm: W | None
    k_norm: W | None
    sinks: W | None
    gate: W | None
    zeros: W | None
    rope: RopeSpec | None


@dataclass(frozen=True, slots=True)
class UnevenAttention:
    """Grouped-query attention of one layer.

    Attributes:
        width: width of the hidden state.
        spec: heads, scale, window. Its `head_dim` is the size of queries and keys.
        rope: rotation of queries and keys; None: the layer has no positions.
        value_dim: size of a head's value, at most that of its key.
        value_scale: factor on values.
        norm_eps: epsilon of the norms of queries and keys, each head by itself; 0: no norms.
        gates: number of gates of a head: one for its result, or one for each element. 0: none.
        softplus: whether the result is multiplied by the softplus of its gate, not its sigmoid.
        divisors: number of divisors of frequencies in the checkpoint's tensor, if it has one. The
            leading ones are for this layer. 0: none are.
    """

    width: int
    spec: AttentionSpec
    rope: RopeSpec | None
    value_dim: int
    value_scale: float = 1.0
    norm_eps: float = 0.0
    gates: int = 0
    softplus: bool = False
    divisors: int = 0

    def state(self, *, causal: bool) -> tuple[StateKind, ...]:
        """See :class:`heddle.models.blocks.Mixer`."""
        kept = KvShape(self.spec.kv_heads, self.spec.head_dim)
        return (Window(self.spec.window, kept) if self.spec.window else Pages(kept),)

    def load(self, loader: Loader[W], name: str) -> UnevenWeights[W]:
        """Claim the tensors of the layer `name`; biases and sinks if the checkpoint has them."""
        name, spec, width = f"{name}.attention", self.spec, self.width
        heads, keys, values = spec.heads, spec.head_dim, self.value_dim

        def norm(part: str) -> W | None:
            return loader.vector(f"{name}.{part}", keys) if self.norm_eps else None

        has_sinks, gates = loader.has(f"{name}.sinks"), heads * self.gates
        return UnevenWeights(
            q=loader.linear(f"{name}.q", heads * keys, width),
            k=loader.linear(f"{name}.k", spec.kv_heads * keys, width),
            v=loader.linear(f"{name}.v", spec.kv_heads * values, width),
            output=loader.linear(f"{name}.output", width, heads * values),
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            sinks=loader.vector(f"{name}.sinks", heads) if has_sinks else None,
            gate=loader.linear(f"{name}.gate", gates, width) if gates else None,
            zeros=loader.filled(gates, 0.0) if gates and self.softplus else None,
            rope=self._rope(loader),
        )

    def _rope(self, loader: Loader[W]) -> RopeSpec | None:
        """The rotation, with the leading divisors of the checkpoint's tensor, if it has one."""
        name = "rope_divisors"
        if self.rope is None or not self.divisors or not loader.has(name):
            return self.rope
        divisors = loader.constants(name, self.divisors)[: self.rope.dim // 2]
        if min(divisors) <= 0:
            raise ModelFileError(
                f"tensor {name} must hold positive numbers, got {min(divisors):g}", field=name
            )
        return self.rope.with_divisors(divisors)

    def forward(
        self, ops: Ops[A, W], weights: UnevenWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """Map normed x (T, width) to (T, width). Stores its keys and values in layer `layer`."""
        spec = self.spec
        q, k, v = (ops.linear(x, one) for one in (weights.q, weights.k, weights.v))
        if self.value_scale != 1.0:
            v = ops.scale(v, self.value_scale)
        if self.value_dim != spec.head_dim:
            v = ops.take_columns(v, 0, spec.head_dim, spec.kv_heads)
        if weights.q_norm is not None and weights.k_norm is not None:
            q = ops.norm_heads(q, weights.q_norm, self.norm_eps, spec.heads)
            k = ops.norm_heads(k, weights.k_norm, self.norm_eps, spec.kv_heads)
        if weights.rope is not None:
            q = ops.rope(q, positions, weights.rope, spec.heads)
            k = ops.rope(k, positions, weights.rope, spec.kv_heads)
        y = ops.attend(q, k, v, layer, spec, weights.sinks)
        if self.value_dim != spec.head_dim:
            y = ops.take_columns(y, 0, self.value_dim, spec.heads)
        if weights.gate is not None:
            y = self._gated(ops, ops.linear(x, weights.gate), weights.zeros, y)
        return ops.linear(y, weights.output)

    def _gated(self, ops: Ops[A, W], gates: A, zeros: W | None, y: A) -> A:
        """The results y (T, heads * value_dim) of heads times their activated gates."""
        activation = "sigmoid"
        if zeros is not None:
            gates, activation = ops.step_size(gates, zeros, 0.0, math.inf), "identity"
        if self.gates > 1:
            return ops.gated(gates, y, activation)
        return ops.gate_rows(y, gates, activation)
