"""A decoder: token embedding, layers, a last norm, the output matrix.

Most families are one of these with the right layers. One that is put together in another way offers
the same `shape`, `state`, `load`, `forward` and `logits`.
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
        shape: sizes that the engine must know.
        layers: from the first to the last.
        norm_eps: of the last norm.
        embedding_scale: factor on what the embedding gives.
    """

    shape: ModelShape
    layers: tuple[Layer, ...]
    norm_eps: float
    embedding_scale: float = 1.0

    def state(self, layer: int) -> StateKind:
        """What a layer keeps of a sequence."""
        window = self.layers[layer].attention.spec.window
        return Window(window) if window else Pages()

    def load(self, loader: Loader[W]) -> DecoderWeights[W]:
        """Claim every tensor. Without an output matrix the embedding is one (tied weights)."""
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
        for index, (layer, of_layer) in enumerate(zip(self.layers, weights.layers, strict=True)):
            x = layer.forward(ops, of_layer, x, batch.positions, index)
        x = ops.take_rows(x, batch.rows)
        return ops.norm(x, weights.output_norm, self.norm_eps)

    def logits(self, ops: Ops[A, W], weights: DecoderWeights[W], states: A) -> A:
        """Logits (R, vocabulary) of what `forward` gave."""
        return ops.linear(states, weights.output)
