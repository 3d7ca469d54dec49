"""Llama: pre-norm decoder, grouped-query attention, rotary positions, SwiGLU.

Touvron et al. 2023 (arXiv:2302.13971); tensor names are GGUF's. Serves SmolLM2 and Llama 2 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.errors import ModelFileError
from heddle.kernels.ops import AttentionSpec, RopeSpec
from heddle.models.base import ModelShape, metadata_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.kernels.ops import Batch, Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Layer(Generic[W]):
    attn_norm: W
    q: W
    k: W
    v: W
    o: W
    ffn_norm: W
    gate: W
    up: W
    down: W


@dataclass(frozen=True, slots=True)
class Weights(Generic[W]):
    embedding: W
    layers: tuple[Layer[W], ...]
    output_norm: W
    output: W
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class Llama:
    shape: ModelShape
    width: int
    ffn_width: int
    heads: int
    eps: float
    rope_dim: int
    rope_base: float

    def load(self, loader: Loader[W]) -> Weights[W]:
        vocabulary, width = self.shape.vocabulary, self.width
        factors: tuple[float, ...] = ()
        if loader.has("rope_freqs.weight"):
            factors = loader.constants("rope_freqs.weight", self.rope_dim // 2)
        tied = not loader.has("output.weight")
        return Weights(
            embedding=loader.embedding("token_embd.weight", vocabulary, width),
            layers=tuple(self._layer(loader, i) for i in range(self.shape.layers)),
            output_norm=loader.vector("output_norm.weight", width),
            output=loader.linear(
                "token_embd.weight" if tied else "output.weight", vocabulary, width
            ),
            rope=RopeSpec(self.rope_dim, self.rope_base, interleaved=True, factors=factors),
        )

    def _layer(self, loader: Loader[W], index: int) -> Layer[W]:
        width, ffn, head_dim = self.width, self.ffn_width, self.shape.head_dim
        q_width, kv_width = self.heads * head_dim, self.shape.kv_heads * head_dim

        def linear(part: str, out_features: int, in_features: int) -> W:
            return loader.linear(f"blk.{index}.{part}.weight", out_features, in_features)

        return Layer(
            attn_norm=loader.vector(f"blk.{index}.attn_norm.weight", width),
            q=linear("attn_q", q_width, width),
            k=linear("attn_k", kv_width, width),
            v=linear("attn_v", kv_width, width),
            o=linear("attn_output", width, q_width),
            ffn_norm=loader.vector(f"blk.{index}.ffn_norm.weight", width),
            gate=linear("ffn_gate", ffn, width),
            up=linear("ffn_up", ffn, width),
            down=linear("ffn_down", width, ffn),
        )

    def forward(self, ops: Ops[A, W], weights: Weights[W], batch: Batch[A]) -> A:
        kv_heads, head_dim = self.shape.kv_heads, self.shape.head_dim
        attention = AttentionSpec(self.heads, kv_heads, head_dim, 1 / math.sqrt(head_dim))
        x = ops.embed(weights.embedding, batch.tokens)
        for index, layer in enumerate(weights.layers):
            h = ops.norm(x, layer.attn_norm, self.eps)
            q = ops.rope(ops.linear(h, layer.q), batch.positions, weights.rope, self.heads)
            k = ops.rope(ops.linear(h, layer.k), batch.positions, weights.rope, kv_heads)
            v = ops.linear(h, layer.v)
            x = ops.add(x, ops.linear(ops.attend(q, k, v, index, attention), layer.o))
            h = ops.norm(x, layer.ffn_norm, self.eps)
            h = ops.gated(ops.linear(h, layer.gate), ops.linear(h, layer.up), "silu")
            x = ops.add(x, ops.linear(h, layer.down))
        x = ops.take_rows(x, batch.rows)
        return ops.linear(ops.norm(x, weights.output_norm, self.eps), weights.output)


def build(metadata: Mapping[str, object]) -> Llama:
    """Read the hyperparameters.

    Raises:
        ModelFileError: one is missing or contradicts another.
    """

    def integer(key: str, default: int | None = None) -> int:
        return metadata_number(metadata, f"llama.{key}", int, default)

    width, heads = integer("embedding_length"), integer("attention.head_count")
    kv_heads = integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelFileError(
            f"{heads} heads cannot share {kv_heads} key/value heads",
            field="llama.attention.head_count_kv",
        )
    head_dim = integer("attention.key_length", width // heads)
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    shape = ModelShape(
        layers=integer("block_count"),
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=integer("vocab_size", len(tokens) if hasattr(tokens, "__len__") else None),
        context=integer("context_length"),
    )
    return Llama(
        shape=shape,
        width=width,
        ffn_width=integer("feed_forward_length"),
        heads=heads,
        eps=metadata_number(metadata, "llama.attention.layer_norm_rms_epsilon", float),
        rope_dim=integer("rope.dimension_count", head_dim),
        rope_base=metadata_number(metadata, "llama.rope.freq_base", float, 10_000.0),
    )
