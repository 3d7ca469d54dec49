"""Gemma 3 (text): norms before and after each part, local and global attention layers, GeGLU.

Gemma Team 2025 (arXiv:2503.19786); tensor names are GGUF's, whose norm weights hold the 1 that the
published ones leave to be added. Most layers attend to a window of recent positions and rotate by
a base of their own; every sixth sees the whole context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.models.base import Dimensions, metadata_number, read_dimensions, read_rope_factors
from heddle.models.ops import AttentionSpec, RopeSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.base import ModelShape
    from heddle.models.ops import Batch, Loader, Ops

A = TypeVar("A")
W = TypeVar("W")

_LAYERS_OF_27B = 62
_WIDEST_WINDOW = 2**31 - 1
"""What instructions can say; no sequence is so long, so that a wider one is the same."""


@dataclass(frozen=True, slots=True)
class Layer(Generic[W]):
    attn_norm: W
    q: W
    k: W
    v: W
    q_norm: W
    k_norm: W
    o: W
    post_attention_norm: W
    ffn_norm: W
    gate: W
    up: W
    down: W
    post_ffw_norm: W


@dataclass(frozen=True, slots=True)
class Weights(Generic[W]):
    embedding: W
    layers: tuple[Layer[W], ...]
    output_norm: W
    output: W


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How a layer places and mixes tokens: local or global."""

    rope: RopeSpec
    attention: AttentionSpec


@dataclass(frozen=True, slots=True)
class Gemma3:
    """Every `period`-th layer is of the kind `whole`, the others are `local`."""

    dimensions: Dimensions
    local: LayerKind
    whole: LayerKind
    period: int

    @property
    def shape(self) -> ModelShape:
        return self.dimensions.shape

    def kind(self, index: int) -> LayerKind:
        """Of layer `index`."""
        return self.local if (index + 1) % self.period else self.whole

    def load(self, loader: Loader[W]) -> Weights[W]:
        vocabulary, width = self.shape.vocabulary, self.shape.width
        tied = not loader.has("output.weight")
        return Weights(
            embedding=loader.embedding("token_embd.weight", vocabulary, width),
            layers=tuple(self._layer(loader, i) for i in range(self.shape.layers)),
            output_norm=loader.vector("output_norm.weight", width),
            output=loader.linear(
                "token_embd.weight" if tied else "output.weight", vocabulary, width
            ),
        )

    def _layer(self, loader: Loader[W], index: int) -> Layer[W]:
        width, ffn = self.shape.width, self.dimensions.ffn_width
        head_dim = self.shape.head_dim
        q_width, kv_width = self.dimensions.heads * head_dim, self.shape.kv_heads * head_dim

        def linear(part: str, out_features: int, in_features: int) -> W:
            return loader.linear(f"blk.{index}.{part}.weight", out_features, in_features)

        def norm(part: str, size: int) -> W:
            return loader.vector(f"blk.{index}.{part}_norm.weight", size)

        return Layer(
            attn_norm=norm("attn", width),
            q=linear("attn_q", q_width, width),
            k=linear("attn_k", kv_width, width),
            v=linear("attn_v", kv_width, width),
            q_norm=norm("attn_q", head_dim),
            k_norm=norm("attn_k", head_dim),
            o=linear("attn_output", width, q_width),
            post_attention_norm=norm("post_attention", width),
            ffn_norm=norm("ffn", width),
            gate=linear("ffn_gate", ffn, width),
            up=linear("ffn_up", ffn, width),
            down=linear("ffn_down", width, ffn),
            post_ffw_norm=norm("post_ffw", width),
        )

    def forward(self, ops: Ops[A, W], weights: Weights[W], batch: Batch[A]) -> A:
        eps = self.dimensions.eps
        # As llama.cpp; Hugging Face rounds it to the weights' type (25.298 to 25.25 in bf16).
        x = ops.scale(ops.embed(weights.embedding, batch.tokens), math.sqrt(self.shape.width))
        for index, layer in enumerate(weights.layers):
            h = self._attend(ops, layer, index, ops.norm(x, layer.attn_norm, eps), batch.positions)
            x = ops.add(x, ops.norm(h, layer.post_attention_norm, eps))
            h = ops.norm(x, layer.ffn_norm, eps)
            h = ops.gated(ops.linear(h, layer.gate), ops.linear(h, layer.up), "gelu")
            x = ops.add(x, ops.norm(ops.linear(h, layer.down), layer.post_ffw_norm, eps))
        x = ops.take_rows(x, batch.rows)
        return ops.norm(x, weights.output_norm, eps)

    def logits(self, ops: Ops[A, W], weights: Weights[W], states: A) -> A:
        return ops.linear(states, weights.output)

    def _attend(self, ops: Ops[A, W], layer: Layer[W], index: int, h: A, positions: A) -> A:
        kind, eps = self.kind(index), self.dimensions.eps
        heads, kv_heads = self.dimensions.heads, self.shape.kv_heads
        q = ops.norm_heads(ops.linear(h, layer.q), layer.q_norm, eps, heads)
        k = ops.norm_heads(ops.linear(h, layer.k), layer.k_norm, eps, kv_heads)
        q = ops.rope(q, positions, kind.rope, heads)
        k = ops.rope(k, positions, kind.rope, kv_heads)
        v = ops.linear(h, layer.v)
        return ops.linear(ops.attend(q, k, v, index, kind.attention), layer.o)


def build(metadata: Mapping[str, object]) -> Gemma3:
    """Read the hyperparameters.

    Raises:
        ModelFileError: one is missing or contradicts another.
        UnsupportedModelError: one asks for what is not supported.
    """
    softcap = "gemma3.final_logit_softcapping"
    cap = metadata.get(softcap, 0.0)
    if not isinstance(cap, int | float) or cap != 0.0:
        raise UnsupportedModelError(
            f"{softcap} {cap!r} is not supported: Gemma 3 has none", param=softcap
        )
    dimensions = read_dimensions(metadata, "gemma3")
    local, whole = _kinds(metadata, dimensions)
    period = metadata_number(metadata, "gemma3.attention.sliding_window_pattern", int, 6)
    return Gemma3(dimensions, local, whole, period)


def _kinds(metadata: Mapping[str, object], dimensions: Dimensions) -> tuple[LayerKind, LayerKind]:
    """The local and the global kind of layer. Long contexts are stretched in global ones only."""

    def number(key: str, default: float | None = None) -> float:
        return metadata_number(metadata, f"gemma3.{key}", float, default)

    shape, dim = dimensions.shape, dimensions.rope_dim
    factors = read_rope_factors(metadata, "gemma3", dim)
    window = metadata_number(metadata, "gemma3.attention.sliding_window", int)
    window = min(window, _WIDEST_WINDOW)
    sizes = (dimensions.heads, shape.kv_heads, shape.head_dim, _attention_scale(dimensions))
    return (
        LayerKind(
            RopeSpec(dim, number("rope.freq_base_swa", 10_000.0), interleaved=False),
            AttentionSpec(*sizes, window),
        ),
        LayerKind(
            RopeSpec(dim, number("rope.freq_base"), interleaved=False, factors=factors),
            AttentionSpec(*sizes),
        ),
    )


def _attention_scale(dimensions: Dimensions) -> float:
    """1 / sqrt(width of a head), in the 27B model that of the stream divided among the heads.

    No key of GGUF tells, so that llama.cpp too knows the 27B model by its number of layers.
    """
    if dimensions.shape.layers == _LAYERS_OF_27B:
        return 1 / math.sqrt(dimensions.shape.width / dimensions.heads)
    return 1 / math.sqrt(dimensions.shape.head_dim)
