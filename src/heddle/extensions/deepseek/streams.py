"""Manifold-constrained hyper-connections: the hidden state is several streams.

Xie et al. 2026 (mHC), as DeepSeek-V4 has them. A part of a layer reads a weighted sum of the
streams. Afterwards each stream is a weighted sum of all streams, plus the part's result times a
weight. One matrix makes all weights from the token's streams. Those between streams are balanced:
their sums over either axis are about 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from heddle.models.blocks import Layer, LayerWeights, apply_norm
from heddle.models.decoder import Decoder, DecoderWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.models.ops import Batch, Loader, Ops

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class StreamWeights:
    """The operation that makes weights of streams from the products of the matrix.

    Of `streams` n: n weights of the sum; and, unless it is `last`, n of the result and n * n
    between streams, from stream j to stream k at j * n + k.
    """

    streams: int
    base: tuple[float, ...]
    scales: tuple[float, ...]
    turns: int
    eps: float

    def width(self, *inputs: int) -> int:
        """See :class:`heddle.models.ops.Operation`, also for the next two."""
        return inputs[0]

    def emit(self, lowering: Any, inputs: list[int], out: int) -> None:
        lowering.program.stream_weights(
            *inputs,
            streams=self.streams,
            base=np.array(self.base, np.float32),
            scales=np.array(self.scales, np.float32),
            turns=self.turns,
            eps=self.eps,
            out=out,
        )

    def compute(self, chunks: Sequence[Any], *inputs: Any) -> Any:
        (x,), n, eps = inputs, self.streams, np.float32(self.eps)
        scales = np.repeat(np.array(self.scales, np.float32), (n, n, n * n)[: len(self.scales)])
        y = x * scales + np.array(self.base, np.float32)
        entering = 1 / (1 + np.exp(-y[:, :n])) + eps
        if len(self.scales) == 1:
            return entering
        leaving = 2 / (1 + np.exp(-y[:, n : 2 * n]))
        between = y[:, 2 * n :].reshape(-1, n, n)
        between = np.exp(between - between.max(axis=-1, keepdims=True))
        between = between / between.sum(axis=-1, keepdims=True) + eps
        for turn in range(self.turns):
            if turn:
                between = between / (between.sum(axis=-1, keepdims=True) + eps)
            between = between / (between.sum(axis=-2, keepdims=True) + eps)
        return np.concatenate([entering, leaving, between.reshape(len(x), -1)], axis=1)


@dataclass(frozen=True, slots=True)
class Collapse:
    """The operation that sums the streams. Inputs: streams, weights."""

    streams: int

    def width(self, *inputs: int) -> int:
        """See :class:`heddle.models.ops.Operation`, also for the next two."""
        return inputs[0] // self.streams

    def emit(self, lowering: Any, inputs: list[int], out: int) -> None:
        lowering.program.collapse(*inputs, out)

    def compute(self, chunks: Sequence[Any], *inputs: Any) -> Any:
        streams, weights = inputs
        apart = streams.reshape(len(streams), self.streams, -1)
        return np.einsum("tnw,tn->tw", apart, weights[:, : self.streams])


@dataclass(frozen=True, slots=True)
class Expand:
    """The operation that makes the next streams. Inputs: streams, the part's result, weights."""

    streams: int

    def width(self, *inputs: int) -> int:
        """See :class:`heddle.models.ops.Operation`, also for the next two."""
        return inputs[0]

    def emit(self, lowering: Any, inputs: list[int], out: int) -> None:
        lowering.program.expand(*inputs, out)

    def compute(self, chunks: Sequence[Any], *inputs: Any) -> Any:
        streams, result, weights = inputs
        n, tokens = self.streams, len(streams)
        leaving, between = weights[:, n : 2 * n], weights[:, 2 * n :].reshape(tokens, n, n)
        mixed = np.einsum("tjw,tjk->tkw", streams.reshape(tokens, n, -1), between)
        return (leaving[..., None] * result[:, None] + mixed).reshape(tokens, -1)


@dataclass(frozen=True, slots=True)
class MixingWeights(Generic[W]):
    matrix: W
    ones: W
    operation: StreamWeights


@dataclass(frozen=True, slots=True)
class Mixing:
    """The streams of a model, and how their weights are made.

    Attributes:
        streams: number of streams.
        width: elements of each.
        turns: how often the sums of weights are balanced.
        eps: term that weights and their sums add.
        norm_eps: epsilon of the norm before the matrix.
    """

    streams: int
    width: int
    turns: int
    eps: float
    norm_eps: float

    def load(self, loader: Loader[W], name: str, *, last: bool = False) -> MixingWeights[W]:
        """Claim the tensors under `name`. The `last` ones make weights of the sum only."""
        n, whole = self.streams, self.streams * self.width
        columns = n if last else n * (n + 2)
        base = loader.constants(f"{name}.base", columns)
        scales = loader.constants(f"{name}.scales", 1 if last else 3)
        return MixingWeights(
            loader.linear(name, columns, whole),
            loader.filled(whole),
            StreamWeights(n, base, scales, self.turns, self.eps),
        )

    def weights(self, ops: Ops[A, W], weights: MixingWeights[W], x: A) -> A:
        """The weights of streams x (T, streams * width)."""
        normed = ops.norm(x, weights.ones, self.norm_eps)
        return ops.apply(weights.operation, ops.linear(normed, weights.matrix))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLayerWeights(LayerWeights[W]):
    of_mixer: MixingWeights[W]
    of_mlp: MixingWeights[W]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLayer(Layer):
    """A layer whose hidden state is streams (T, streams * width)."""

    mixing: Mixing

    def load(self, loader: Loader[W], name: str) -> StreamLayerWeights[W]:
        """Claim the tensors under `name`."""
        own = Layer.load(self, loader, name)
        return StreamLayerWeights(
            attention_norm=own.attention_norm,
            mixer=own.mixer,
            after_attention=own.after_attention,
            mlp_norm=own.mlp_norm,
            mlp=own.mlp,
            after_mlp=own.after_mlp,
            of_mixer=self.mixing.load(loader, f"{name}.attention_streams"),
            of_mlp=self.mixing.load(loader, f"{name}.mlp_streams"),
        )

    def forward(
        self, ops: Ops[A, W], weights: LayerWeights[W], x: A, positions: A, index: int
    ) -> A:
        """The streams after layer `index`."""
        assert isinstance(weights, StreamLayerWeights), "made by `load`"
        assert self.mixer is not None, "a layer has both parts"
        assert self.mlp is not None, "a layer has both parts"
        count, mixing = self.mixing.streams, self.mixing
        by = mixing.weights(ops, weights.of_mixer, x)
        h = self._norm(ops, ops.apply(Collapse(count), x, by), weights.attention_norm)
        h = self.mixer.forward(ops, weights.mixer, h, positions, index)
        x = ops.apply(Expand(count), x, h, by)
        by = mixing.weights(ops, weights.of_mlp, x)
        h = self._norm(ops, ops.apply(Collapse(count), x, by), weights.mlp_norm)
        h = self.mlp.forward(ops, weights.mlp, h)
        return ops.apply(Expand(count), x, h, by)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDecoderWeights(DecoderWeights[W]):
    mixing: MixingWeights[W]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDecoder(Decoder):
    """A decoder whose streams all begin as the embedding, and are summed before the last norm."""

    mixing: Mixing

    def load(self, loader: Loader[W]) -> StreamDecoderWeights[W]:
        """Claim all tensors."""
        own = Decoder.load(self, loader)
        return StreamDecoderWeights(
            embedding=own.embedding,
            layers=own.layers,
            output_norm=own.output_norm,
            output=own.output,
            mixing=self.mixing.load(loader, "streams", last=True),
        )

    def forward(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A]) -> A:
        """Last hidden states (R, width) of the batch's rows, after the last norm."""
        assert isinstance(weights, StreamDecoderWeights), "made by `load`"
        embedded = x = self.embedded(ops, weights, batch)
        for _ in range(1, self.mixing.streams):
            x = ops.join(x, embedded)
        x = ops.take_rows(self.hidden(ops, weights, batch, x), batch.rows)
        by = self.mixing.weights(ops, weights.mixing, x)
        x = ops.apply(Collapse(self.mixing.streams), x, by)
        return apply_norm(ops, weights.output_norm, x, self.norm_eps)
