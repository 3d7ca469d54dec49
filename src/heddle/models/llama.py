"""Llama: pre-norm decoder, grouped-query attention, rotary positions, SwiGLU.

Touvron et al. 2023 (arXiv:2302.13971); tensor names are GGUF's. Serves SmolLM2, Llama 2 and 3, and
under their own names the architectures that differ by a detail. Biases are added where the file
has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import mul
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.errors import ModelFileError
from heddle.models.base import Dimensions, metadata_number, read_dimensions, read_rope_factors
from heddle.models.ops import AttentionSpec, RopeSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.base import ModelShape
    from heddle.models.ops import Batch, Loader, Ops

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
    dimensions: Dimensions
    rope: RopeSpec

    @property
    def shape(self) -> ModelShape:
        return self.dimensions.shape

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
            rope=self._rope(loader),
        )

    def _layer(self, loader: Loader[W], index: int) -> Layer[W]:
        width, ffn = self.shape.width, self.dimensions.ffn_width
        q_width = self.dimensions.heads * self.shape.head_dim
        kv_width = self.shape.kv_heads * self.shape.head_dim

        def linear(part: str, out_features: int, in_features: int) -> W:
            name = f"blk.{index}.{part}"
            bias = f"{name}.bias" if loader.has(f"{name}.bias") else None
            return loader.linear(f"{name}.weight", out_features, in_features, bias)

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

    def _rope(self, loader: Loader[W]) -> RopeSpec:
        """Llama 3 carries divisors of its frequencies as a tensor."""
        if not loader.has("rope_freqs.weight"):
            return self.rope
        name = "rope_freqs.weight"
        divisors = loader.constants(name, self.rope.dim // 2)
        if min(divisors) <= 0:
            raise ModelFileError(
                f"tensor {name} must hold positive numbers, got {min(divisors):g}", field=name
            )
        return replace(self.rope, factors=tuple(map(mul, divisors, self.rope.factors)))

    def forward(self, ops: Ops[A, W], weights: Weights[W], batch: Batch[A]) -> A:
        heads, eps = self.dimensions.heads, self.dimensions.eps
        kv_heads, head_dim = self.shape.kv_heads, self.shape.head_dim
        attention = AttentionSpec(heads, kv_heads, head_dim, 1 / math.sqrt(head_dim))
        x = ops.embed(weights.embedding, batch.tokens)
        for index, layer in enumerate(weights.layers):
            h = ops.norm(x, layer.attn_norm, eps)
            q = ops.rope(ops.linear(h, layer.q), batch.positions, weights.rope, heads)
            k = ops.rope(ops.linear(h, layer.k), batch.positions, weights.rope, kv_heads)
            v = ops.linear(h, layer.v)
            x = ops.add(x, ops.linear(ops.attend(q, k, v, index, attention), layer.o))
            h = ops.norm(x, layer.ffn_norm, eps)
            h = ops.gated(ops.linear(h, layer.gate), ops.linear(h, layer.up), "silu")
            x = ops.add(x, ops.linear(h, layer.down))
        x = ops.take_rows(x, batch.rows)
        return ops.norm(x, weights.output_norm, eps)

    def logits(self, ops: Ops[A, W], weights: Weights[W], states: A) -> A:
        return ops.linear(states, weights.output)


def build(metadata: Mapping[str, object]) -> Llama:
    """Read the hyperparameters; see :func:`read`."""
    return read(metadata, "llama", interleaved=True)


def read(metadata: Mapping[str, object], architecture: str, *, interleaved: bool) -> Llama:
    """The model whose keys begin with `architecture`.

    `interleaved` says which elements of a head its file's rows of q and k pair for the rotation.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: one asks for what is not supported.
    """
    dimensions = read_dimensions(metadata, architecture)
    base = metadata_number(metadata, f"{architecture}.rope.freq_base", float, 10_000.0)
    factors = read_rope_factors(metadata, architecture, dimensions.rope_dim)
    return Llama(dimensions, RopeSpec(dimensions.rope_dim, base, interleaved, factors))
