"""A decoder: token embedding, layers, a last norm, the output matrix.

Most families are a `Decoder` with their own layers. A family with another structure offers the same
`shape`, `state`, `load`, `forward` and `logits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.state import Pages, Window

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


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model bound to one checkpoint's hyperparameters. Holds no tensors.

    Attributes:
        shape: sizes that the engine needs.
        layers: the layers in order.
        norm_eps: epsilon of the last norm.
        embedding_scale: factor on the embedding's result.
        logit_scale: factor on the logits.
        logit_cap: soft cap on logits, see :meth:`heddle.models.ops.Ops.soft_cap`; 0: no cap.
    """

    shape: ModelShape
    layers: tuple[Layer, ...]
    norm_eps: float
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0

    def state(self, layer: int) -> StateKind:
        """The kind of state that a layer keeps of a sequence."""
        window = self.layers[layer].attention.spec.window
        return Window(window) if window else Pages()

    def load(self, loader: Loader[W]) -> DecoderWeights[W]:
        """Claim all tensors. Without an output matrix, the embedding is used (tied weights)."""
        vocabulary, width = self.shape.vocabulary, self.shape.width
        return DecoderWeights(
            embedding=loader.embedding("embedding", vocabulary, width),
            layers=tuple(layer.load(loader, f"layers.{i}") for i, layer in enumerate(self.layers)),
            output_norm=loader.vector("output_norm", width),
            output=loader.linear(
                "output" if loader.has("output") else "embedding", vocabulary, width
            ),
        )

    def forward(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A]) -> A:
        """Last hidden states (R, width) of the batch's rows, after the last norm."""
        x = ops.embed(weights.embedding, batch.tokens)
        if self.embedding_scale != 1.0:
            x = ops.scale(x, self.embedding_scale)
        layers = zip(self.layers, weights.layers, strict=True)
        for index, (layer, layer_weights) in enumerate(layers):
            x = layer.forward(ops, layer_weights, x, batch.positions, index)
        x = ops.take_rows(x, batch.rows)
        return ops.norm(x, weights.output_norm, self.norm_eps)

    def logits(self, ops: Ops[A, W], weights: DecoderWeights[W], states: A) -> A:
        """Logits (R, vocabulary) of the hidden states that `forward` returned."""
        logits = ops.linear(states, weights.output)
        if self.logit_scale != 1.0:
            logits = ops.scale(logits, self.logit_scale)
        return ops.soft_cap(logits, self.logit_cap) if self.logit_cap else logits
