"""A decoder: token embedding, layers, a last norm, the output matrix.

Most families are a `Decoder` with their own layers. A family with another structure offers the same
`shape`, `state`, `load`, `forward` and `logits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.state import KvShape, Pages, Shared, Window

if TYPE_CHECKING:
    from heddle.models.blocks import Layer, LayerWeights
    from heddle.models.ops import Batch, Loader, Ops
    from heddle.state import StateKind
    from heddle.step import ModelShape

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[W]):
    embedding: W
    layers: tuple[LayerWeights[W], ...]
    output_norm: W
    output: W
    dense: tuple[W, ...] = ()


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model bound to one checkpoint's hyperparameters. Holds no tensors.

    Attributes:
        shape: sizes that the engine needs.
        layers: the layers in order.
        norm_eps: epsilon of the last norm.
        embedding_scale: factor on the embedding's result.
        logit_scale: factor on the logits.
        dense_widths: widths of the results of matrices that follow the last norm, for embeddings.
            Only an encoder has any. The mean of their results is their result of the mean.
        logit_cap: soft cap on logits, see :meth:`heddle.models.ops.Ops.soft_cap`; 0: no cap.
    """

    shape: ModelShape
    layers: tuple[Layer, ...]
    norm_eps: float
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    dense_widths: tuple[int, ...] = ()

    def state(self, layer: int) -> StateKind:
        """The kind of state that a layer keeps of a sequence.

        An encoder keeps all positions: a step computes all tokens at once.
        """
        attention = self.layers[layer].attention
        if attention.source is not None:
            return Shared(attention.source)
        spec = attention.spec
        kept = KvShape(spec.kv_heads, spec.head_dim)
        return Window(spec.window, kept) if spec.window and self.shape.causal else Pages(kept)

    def load(self, loader: Loader[W]) -> DecoderWeights[W]:
        """Claim all tensors. Without an output matrix, the embedding is used (tied weights)."""
        vocabulary, width = self.shape.vocabulary, self.shape.width
        dense_inputs = (width, *self.dense_widths)
        return DecoderWeights(
            embedding=loader.embedding("embedding", vocabulary, width),
            layers=tuple(layer.load(loader, f"layers.{i}") for i, layer in enumerate(self.layers)),
            output_norm=loader.vector("output_norm", width),
            output=loader.linear(
                "output" if loader.has("output") else "embedding", vocabulary, width
            ),
            dense=tuple(
                loader.linear(f"dense.{i}", size, dense_inputs[i])
                for i, size in enumerate(self.dense_widths)
            ),
        )

    def forward(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A]) -> A:
        """Last hidden states (R, width) of the batch's rows, after last norm and dense layers."""
        x = ops.embed(weights.embedding, batch.tokens)
        if self.embedding_scale != 1.0:
            x = ops.scale(x, self.embedding_scale)
        x = ops.take_rows(self.hidden(ops, weights, batch, x), batch.rows)
        x = ops.norm(x, weights.output_norm, self.norm_eps)
        for matrix in weights.dense:
            x = ops.linear(x, matrix)
        return x

    def hidden(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A], x: A) -> A:
        """The hidden states (T, width) after all layers, from embeddings x (T, width)."""
        layers = zip(self.layers, weights.layers, strict=True)
        for index, (layer, layer_weights) in enumerate(layers):
            x = layer.forward(ops, layer_weights, x, batch.positions, index)
        return x

    def logits(self, ops: Ops[A, W], weights: DecoderWeights[W], states: A) -> A:
        """Logits (R, vocabulary) of the hidden states that `forward` returned."""
        logits = ops.linear(states, weights.output)
        if self.logit_scale != 1.0:
            logits = ops.scale(logits, self.logit_scale)
        return ops.soft_cap(logits, self.logit_cap) if self.logit_cap else logits
