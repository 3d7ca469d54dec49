"""A decoder whose embeddings get learned positions, or a norm."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.models.blocks import apply_norm, load_norm
from heddle.models.decoder import Decoder, DecoderWeights

if TYPE_CHECKING:
    from heddle.models.blocks import LayerNormWeights
    from heddle.models.ops import Batch, Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWeights(DecoderWeights[W], Generic[W]):
    """`positions` is None without such a table, `embedding_norm` without such a norm."""

    positions: W | None
    embedding_norm: W | LayerNormWeights[W] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDecoder(Decoder):
    """Adds to each token's embedding the row of its position, or norms it.

    Attributes:
        first_position: row of the table that the first token takes; None: there is no table.
        norms_embedding: whether the embedding has a norm.
    """

    first_position: int | None = None
    norms_embedding: bool = False

    def load(self, loader: Loader[W]) -> PlacedWeights[W]:
        """See :meth:`Decoder.load`."""
        plain = Decoder.load(self, loader)
        width, first = self.shape.width, self.first_position
        table = norm = None
        if first is not None:
            table = loader.embedding("positions", self.shape.context + first, width)
        if self.norms_embedding:
            norm = load_norm(loader, "embedding_norm", width, centred=True)
        parts = {field.name: getattr(plain, field.name) for field in fields(plain)}
        return PlacedWeights(**parts, positions=table, embedding_norm=norm)

    def embedded(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A]) -> A:
        """See :meth:`Decoder.embedded`."""
        assert isinstance(weights, PlacedWeights), "made by `load`"
        x = Decoder.embedded(self, ops, weights, batch)
        if weights.positions is not None:
            rows = ops.embed(weights.positions, batch.positions, self.first_position or 0)
            x = ops.add(x, rows)
        if weights.embedding_norm is not None:
            x = apply_norm(ops, weights.embedding_norm, x, self.norm_eps)
        return x
