"""A decoder: token embedding, layers, a last norm, the output matrix.

Most families are a `Decoder` with their own layers. A family with another structure offers the same
`shape`, `state`, `load`, `forward` and `logits`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from heddle.models.blocks import apply_norm, load_norm

if TYPE_CHECKING:
    from heddle.executor import ModelShape
    from heddle.models.blocks import Layer, LayerNormWeights, LayerWeights
    from heddle.models.ops import Batch, Loader, Ops
    from heddle.state import StateKind

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[W]):
    embedding: W
    layers: tuple[LayerWeights[W], ...]
    output_norm: W | LayerNormWeights[W]
    output: W
    dense: tuple[W, ...] = ()


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model bound to one checkpoint's hyperparameters. Holds no tensors.

    Attributes:
        shape: sizes that the engine needs.
        layers: the layers in order.
        norm_eps: epsilon of the last norm, which is of the kind of the layers' norms.
        embedding_scale: factor on the embedding's result.
        logit_scale: factor on the logits.
        dense_widths: widths of the results of matrices that follow the last norm, for embeddings.
            Only an encoder has any. The mean of their results is their result of the mean.
        logit_cap: soft cap on logits, see :meth:`heddle.models.ops.Ops.soft_cap`; 0: no cap.
        head: the model's own head that predicts one more token, if its files have one.
        seeing_layers: number of first layers to whose results further columns of rows of pictures
            are added, `width` of them for each layer.
        scales_pictures: whether `embedding_scale` applies to the rows of pictures, too.
    """

    shape: ModelShape
    layers: tuple[Layer, ...]
    norm_eps: float
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    dense_widths: tuple[int, ...] = ()
    head: PredictionHead | None = None
    seeing_layers: int = 0
    scales_pictures: bool = False

    @property
    def reads_states(self) -> bool:
        """Whether `forward` reads hidden states of another model beside tokens."""
        return False

    def state(self, layer: int) -> tuple[StateKind, ...]:
        """The kinds of state that a layer keeps of a sequence."""
        return self.layers[layer].state(causal=self.shape.causal)

    def load(self, loader: Loader[W]) -> DecoderWeights[W]:
        """Claim all tensors. Without an output matrix, the embedding is used (tied weights)."""
        vocabulary, width = self.shape.vocabulary, self.shape.width
        dense_inputs = (width, *self.dense_widths)
        return DecoderWeights(
            embedding=loader.embedding("embedding", vocabulary, width),
            layers=tuple(layer.load(loader, f"layers.{i}") for i, layer in enumerate(self.layers)),
            output_norm=load_norm(loader, "output_norm", width, centred=self.layers[0].centred),
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
        x = self.embedded(ops, weights, batch)
        x = ops.take_rows(self.hidden(ops, weights, batch, x), batch.rows)
        x = apply_norm(ops, weights.output_norm, x, self.norm_eps)
        for matrix in weights.dense:
            x = ops.linear(x, matrix)
        return x

    def embedded(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A]) -> A:
        """The embeddings (T, width) of the batch's tokens."""
        x = ops.embed(weights.embedding, batch.tokens)
        if self.scales_pictures:
            x = ops.see(x)
        if self.embedding_scale != 1.0:
            x = ops.scale(x, self.embedding_scale)
        return x if self.scales_pictures else ops.see(x)

    def hidden(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A], x: A) -> A:
        """The hidden states (T, width) after all layers, from embeddings x (T, width)."""
        layers = zip(self.layers, weights.layers, strict=True)
        for index, (layer, layer_weights) in enumerate(layers):
            x = layer.forward(ops, layer_weights, x, batch.positions, index)
            if index < self.seeing_layers:
                x = ops.see(x, (1 + index) * self.shape.width, adds=True)
        return x

    def logits(self, ops: Ops[A, W], weights: DecoderWeights[W], states: A) -> A:
        """Logits (R, vocabulary) of the hidden states that `forward` returned."""
        logits = ops.linear(states, weights.output)
        if self.logit_scale != 1.0:
            logits = ops.scale(logits, self.logit_scale)
        return ops.soft_cap(logits, self.logit_cap) if self.logit_cap else logits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWeights(DecoderWeights[W]):
    """Weights of a prediction head. It may share embedding and output matrix with its model."""

    embedding_norm: W
    state_norm: W
    projection: W


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionHead(Decoder):
    """A model's own head that predicts one more token (multi-token prediction, MTP).

    DeepSeek-AI 2024 (arXiv:2412.19437, section 2.2); GLM-4.5, Qwen3-Next and Qwen3.5 have it too.
    At position i it reads the next token t[i+1] and the model's state h[i], after the model's last
    norm::

        x = projection [embedding_norm(embedding(t[i+1])); state_norm(h[i])]
        s = output_norm(layer(x))
        logits of t[i+2] = output(s)

    To guess t[i+3], it reads s in the place of h[i+1]. States are normed in both places: DeepSeek's
    own model file does it for h, and engines that feed back s without its norm lose right guesses
    (vllm-project/vllm#47448).

    Attributes:
        name: canonical name of the layer that has its tensors: the one after the model's last.
    """

    name: str

    @classmethod
    def of(cls, shape: ModelShape, layer: Layer, norm_eps: float) -> Self:
        """The head of a model with this shape. `layer` is the head's."""
        of_one = replace(shape, layers=1)
        return cls(of_one, (layer,), norm_eps, name=f"layers.{shape.layers}")

    @property
    def reads_states(self) -> bool:
        return True

    def load_beside(self, loader: Loader[W], model: DecoderWeights[W]) -> HeadWeights[W]:
        """Claim the head's tensors. What it lacks of embedding and output is that of `model`."""
        vocabulary, width = self.shape.vocabulary, self.shape.width
        own = f"{self.name}.prediction"
        has_embedding, has_output = loader.has(f"{own}.embedding"), loader.has(f"{own}.output")
        return HeadWeights(
            embedding=(
                loader.embedding(f"{own}.embedding", vocabulary, width)
                if has_embedding
                else model.embedding
            ),
            layers=(self.layers[0].load(loader, self.name),),
            output_norm=loader.vector(f"{own}.output_norm", width),
            output=(
                loader.linear(f"{own}.output", vocabulary, width) if has_output else model.output
            ),
            embedding_norm=loader.vector(f"{own}.embedding_norm", width),
            state_norm=loader.vector(f"{own}.state_norm", width),
            projection=loader.linear(f"{own}.projection", width, 2 * width),
        )

    def embedded(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A]) -> A:
        """The layer's input (T, width), from tokens and states."""
        assert isinstance(weights, HeadWeights), "made by `load_beside`"
        assert batch.states is not None, "a head reads hidden states"
        x = Decoder.embedded(self, ops, weights, batch)
        x = ops.norm(x, weights.embedding_norm, self.norm_eps)
        h = ops.norm(batch.states, weights.state_norm, self.norm_eps)
        return ops.linear(ops.join(x, h), weights.projection)
