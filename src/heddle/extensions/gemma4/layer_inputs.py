"""The inputs that the layers of Gemma 3n and 4 have of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.models.ops import Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class LayerInputWeights(Generic[W]):
    table: W
    projection: W
    norm: W


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """For each layer a row of a table by token, plus a projection of the embedding.

    Attributes:
        layers: number of layers.
        width: elements of a layer's input.
        embedding_width: elements of an embedding.
        rows: tokens that the table has.
        norm_eps: epsilon of the norm of projections.
    """

    layers: int
    width: int
    embedding_width: int
    rows: int
    norm_eps: float

    def load(self, loader: Loader[W]) -> LayerInputWeights[W]:
        """Claim the tensors."""
        total = self.width * self.layers
        return LayerInputWeights(
            loader.embedding("layer_inputs.embedding", self.rows, total),
            loader.linear("layer_inputs.projection", total, self.embedding_width),
            loader.vector("layer_inputs.norm", self.width),
        )

    def of_layers(
        self, ops: Ops[A, W], weights: LayerInputWeights[W], tokens: A, x: A
    ) -> Iterator[A]:
        """The input (T, width) of each layer, from scaled embeddings x (T, embedding_width)."""
        rows = ops.scale(ops.embed(weights.table, tokens), math.sqrt(self.width))
        projected = ops.linear(x, weights.projection)
        projected = ops.scale(projected, 1 / math.sqrt(self.embedding_width))
        projected = ops.norm_heads(projected, weights.norm, self.norm_eps, self.layers)
        inputs = ops.scale(ops.add(projected, rows), math.sqrt(0.5))
        for layer in range(self.layers):
            yield ops.take_columns(inputs, layer * self.width, self.width)
