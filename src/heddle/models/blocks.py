"""The blocks of decoders: attention, the gated feed-forward layer, and the placement of norms.

The file of a family puts blocks together. A block is a frozen description. `load` claims its
weights from a checkpoint. `forward` expresses its computation with `Ops`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from heddle.models.ops import AttentionSpec, Loader, Ops, RopeSpec

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class AttentionWeights(Generic[W]):
    """Weights of attention. `q_norm` and `k_norm` norm each head; None if the family has none."""

    q: W
    k: W
    v: W
    output: W
    q_norm: W | None
    k_norm: W | None
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal grouped-query attention with rotary positions.

    Attributes:
        width: width of the hidden state.
        spec: heads, scale, window.
        rope: rotation of queries and keys.
        head_norm_eps: epsilon of the RMS norm of each query and key head before rotation; None: no
            such norm.
    """

    width: int
    spec: AttentionSpec
    rope: RopeSpec
    head_norm_eps: float | None = None

    def load(self, loader: Loader[W], name: str) -> AttentionWeights[W]:
        """Claim the tensors under `name`, with biases if the checkpoint has them."""
        spec, normed = self.spec, self.head_norm_eps is not None
        q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        return AttentionWeights(
            q=loader.linear(f"{name}.q", q_width, self.width),
            k=loader.linear(f"{name}.k", kv_width, self.width),
            v=loader.linear(f"{name}.v", kv_width, self.width),
            output=loader.linear(f"{name}.output", self.width, q_width),
            q_norm=loader.vector(f"{name}.q_norm", spec.head_dim) if normed else None,
            k_norm=loader.vector(f"{name}.k_norm", spec.head_dim) if normed else None,
            rope=self._rope(loader),
        )

    def _rope(self, loader: Loader[W]) -> RopeSpec:
        """The rotation, with divisors of frequencies if the checkpoint has a tensor of them.

        Llama 3 and models with longrope have such a tensor.
        """
        name = self.rope.divisors or "rope_divisors"
        if not (self.rope.divisors or loader.has(name)):
            return self.rope
        divisors = loader.constants(name, self.rope.dim // 2)
        if min(divisors) <= 0:
            raise ModelFileError(
                f"tensor {name} must hold positive numbers, got {min(divisors):g}", field=name
            )
        return self.rope.with_divisors(divisors)

    def forward(
        self, ops: Ops[A, W], weights: AttentionWeights[W], x: A, positions: A, layer: int
    ) -> A:
        """From normed x (T, width) to (T, width). Stores keys and values in layer `layer`."""
        spec = self.spec
        q, k, v = ops.linear(x, weights.q), ops.linear(x, weights.k), ops.linear(x, weights.v)
        if self.head_norm_eps is not None:
            assert weights.q_norm is not None and weights.k_norm is not None
            q = ops.norm_heads(q, weights.q_norm, self.head_norm_eps, spec.heads)
            k = ops.norm_heads(k, weights.k_norm, self.head_norm_eps, spec.kv_heads)
        q = ops.rope(q, positions, weights.rope, spec.heads)
        k = ops.rope(k, positions, weights.rope, spec.kv_heads)
        return ops.linear(ops.attend(q, k, v, layer, spec), weights.output)


@dataclass(frozen=True, slots=True)
class GatedMLPWeights(Generic[W]):
    gate: W
    up: W
    down: W


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """Feed-forward layer: down(activation(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    width: int
    hidden: int
    activation: str

    def load(self, loader: Loader[W], name: str) -> GatedMLPWeights[W]:
        """Claim the tensors under `name`."""
        return GatedMLPWeights(
            gate=loader.linear(f"{name}.gate", self.hidden, self.width),
            up=loader.linear(f"{name}.up", self.hidden, self.width),
            down=loader.linear(f"{name}.down", self.width, self.hidden),
        )

    def forward(self, ops: Ops[A, W], weights: GatedMLPWeights[W], x: A) -> A:
        """From normed x (T, width) to (T, width)."""
        gate, up = ops.linear(x, weights.gate), ops.linear(x, weights.up)
        return ops.linear(ops.gated(gate, up, self.activation), weights.down)


class FeedForward(Protocol):
    """The feed-forward part of a layer: a `GatedMLP` or a `MixtureOfExperts`."""

    def load(self, loader: Loader[Any], name: str) -> Any:
        """Claim the tensors under `name`."""
        ...

    def forward(self, ops: Ops[A, Any], weights: Any, x: A) -> A:
        """From normed x (T, width) to (T, width). `weights` are what `load` returned."""
        ...


class NormPlacement(Enum):
    """Where a layer has norms. The result of each part is added to the hidden state."""

    BEFORE = "before"
    """x + part(norm(x)): most families."""
    AROUND = "around"
    """x + norm(part(norm(x))): Gemma 2 and 3."""


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[W]):
    """Weights of a layer. `after_*` norm the result of each part; None without such norms."""

    attention_norm: W
    attention: AttentionWeights[W]
    after_attention: W | None
    mlp_norm: W
    mlp: Any
    after_mlp: W | None


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention, then a feed-forward layer. Each has norms and is added to the hidden state."""

    attention: Attention
    mlp: FeedForward
    norm_eps: float
    norms: NormPlacement = NormPlacement.BEFORE

    def load(self, loader: Loader[W], name: str) -> LayerWeights[W]:
        """Claim the tensors under `name`."""
        width, after = self.attention.width, self.norms is NormPlacement.AROUND
        return LayerWeights(
            attention_norm=loader.vector(f"{name}.attention_norm", width),
            attention=self.attention.load(loader, f"{name}.attention"),
            after_attention=loader.vector(f"{name}.post_attention_norm", width) if after else None,
            mlp_norm=loader.vector(f"{name}.mlp_norm", width),
            mlp=self.mlp.load(loader, f"{name}.mlp"),
            after_mlp=loader.vector(f"{name}.post_mlp_norm", width) if after else None,
        )

    def forward(
        self, ops: Ops[A, W], weights: LayerWeights[W], x: A, positions: A, index: int
    ) -> A:
        """The hidden state (T, width) after layer `index`."""
        eps = self.norm_eps
        h = ops.norm(x, weights.attention_norm, eps)
        h = self.attention.forward(ops, weights.attention, h, positions, index)
        if weights.after_attention is not None:
            h = ops.norm(h, weights.after_attention, eps)
        x = ops.add(x, h)
        h = self.mlp.forward(ops, weights.mlp, ops.norm(x, weights.mlp_norm, eps))
        if weights.after_mlp is not None:
            h = ops.norm(h, weights.after_mlp, eps)
        return ops.add(x, h)
