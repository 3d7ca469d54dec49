"""An encoder: embeddings of tokens, positions and segments, layers, and perhaps a classifier.

Devlin et al. 2019 (arXiv:1810.04805). All tokens of a text see one another, so one step computes a
whole text. It has no output matrix: its results are hidden states, or the logits of a classifier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.extensions.encoders.experts import PlainExperts
from heddle.models.base import read_sizes
from heddle.models.blocks import (
    Attention,
    Layer,
    LayerNormWeights,
    NormPlacement,
    apply_norm,
    load_norm,
)
from heddle.models.decoder import Decoder, DecoderWeights
from heddle.models.feed_forward import MLP, GatedMLP
from heddle.models.ops import ExpertSpec, Slopes
from heddle.models.positions import rope

if TYPE_CHECKING:
    from heddle.models.base import Sizes
    from heddle.models.blocks import FeedForward
    from heddle.models.ops import Batch, Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class ClassifierWeights(Generic[W]):
    """Weights of a classifier. Parts that the checkpoint lacks are None."""

    pooler: W | None
    norm: W | LayerNormWeights[W] | None
    output: W | None


@dataclass(frozen=True, slots=True)
class Classifier:
    """Logits of a text: output(norm(activation(pooler(x)))), of its first token or of their mean.

    A file may lack the pooler, its norm, or the output, whose place the pooler then takes.

    Attributes:
        width: width of the hidden state.
        labels: number of logits.
        activation: of the pooler.
        norm_eps: epsilon of the norm after the pooler.
        of_mean: whether x is the mean of all tokens, not the first one.
    """

    width: int
    labels: int
    activation: str
    norm_eps: float
    of_mean: bool = False

    def load(self, loader: Loader[W]) -> ClassifierWeights[W]:
        """Claim the tensors that there are."""
        has_output = loader.has("classifier")
        has_pooler, has_norm = loader.has("pooler"), loader.has("pooler_norm")
        rows = self.width if has_output else self.labels
        return ClassifierWeights(
            loader.linear("pooler", rows, self.width) if has_pooler else None,
            load_norm(loader, "pooler_norm", self.width, centred=True) if has_norm else None,
            loader.linear("classifier", self.labels, self.width) if has_output else None,
        )

    def forward(self, ops: Ops[A, W], weights: ClassifierWeights[W], x: A) -> A:
        """The logits (R, labels) of x (R, width)."""
        if weights.pooler is not None:
            x = ops.linear(x, weights.pooler)
            x = x if weights.output is None else ops.activate(x, self.activation)
        if weights.norm is not None:
            x = apply_norm(ops, weights.norm, x, self.norm_eps)
        return x if weights.output is None else ops.linear(x, weights.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWeights(DecoderWeights[W]):
    """Weights of an encoder. Tables and norms that it lacks are None. `output` has no use."""

    positions: W | None
    segments: W | None
    embedding_norm: W | LayerNormWeights[W]
    projection: W | None
    classifier: ClassifierWeights[W] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder(Decoder):
    """An encoder bound to one checkpoint's hyperparameters.

    Attributes:
        first_position: row of the table of positions that the first token takes; None: the model
            has no such table.
        segments: rows of the table of segments, if the checkpoint has one.
        separator: the token that ends a segment; -1: all tokens are of the first segment.
        embedding_eps: epsilon of the norm of embeddings.
        has_last_norm: whether a norm follows the last layer.
        classifier: what makes logits of a text; None: the model makes embeddings.
        embedding_width: width of the tables. If it is not that of the hidden states, a matrix
            follows.
        width: width of the hidden states. Embeddings may have another one, that of `shape`.
        activations: of the dense layers; they may be empty.
        dense_of_mean: whether dense layers read the mean of all tokens.
        of_first: whether texts are mostly read at their first token. Then the feed-forward part of
            the last layer computes the rows that are read, not all.
    """

    first_position: int | None = None
    segments: int = 1
    separator: int = -1
    embedding_eps: float
    has_last_norm: bool = False
    classifier: Classifier | None = None
    width: int
    embedding_width: int
    activations: tuple[str, ...] = ()
    dense_of_mean: bool = False
    of_first: bool = False

    def load(self, loader: Loader[W]) -> EncoderWeights[W]:
        """Claim all tensors."""
        vocabulary, width = self.shape.vocabulary, self.width
        inputs, narrow = (width, *self.dense_widths), self.embedding_width
        rows = self.shape.context + (self.first_position or 0)
        has_positions = self.first_position is not None
        if loader.has("layers.0.attention.q_norm"):
            raise UnsupportedModelError(
                "layer norms of queries and keys are not supported in encoders", param="q_norm"
            )
        embedding = loader.embedding("embedding", vocabulary, narrow)
        return EncoderWeights(
            embedding=embedding,
            layers=tuple(layer.load(loader, f"layers.{i}") for i, layer in enumerate(self.layers)),
            output_norm=(
                load_norm(loader, "output_norm", width, centred=True)
                if self.has_last_norm
                else embedding
            ),
            output=embedding,
            dense=tuple(
                loader.linear(f"dense.{i}", size, inputs[i])
                for i, size in enumerate(self.dense_widths)
            ),
            positions=loader.embedding("positions", rows, narrow) if has_positions else None,
            segments=(
                loader.embedding("segments", self.segments, narrow)
                if loader.has("segments")
                else None
            ),
            embedding_norm=load_norm(loader, "embedding_norm", narrow, centred=True),
            projection=(
                loader.linear("embedding_projection", width, narrow) if narrow != width else None
            ),
            classifier=None if self.classifier is None else self.classifier.load(loader),
        )

    def embedded(self, ops: Ops[A, W], weights: Any, batch: Batch[A]) -> A:
        x = ops.embed(weights.embedding, batch.tokens)
        if weights.segments is not None:
            x = ops.add(x, ops.embed_segments(weights.segments, batch.tokens, self.separator))
        if weights.positions is not None:
            assert self.first_position is not None, "a table of positions has a first row"
            rows = ops.embed(weights.positions, batch.positions, self.first_position)
            x = ops.add(x, rows)
        x = apply_norm(ops, weights.embedding_norm, x, self.embedding_eps)
        return x if weights.projection is None else ops.linear(x, weights.projection)

    def forward(self, ops: Ops[A, W], weights: Any, batch: Batch[A]) -> A:
        """Last hidden states (R, width) of the batch's rows, or what is made of them."""
        x = self.embedded(ops, weights, batch)
        of_mean = self.classifier.of_mean if self.classifier else self.dense_of_mean
        if self.of_first and not of_mean:
            x = self._hidden_of_rows(ops, weights, batch, x)
        else:
            x = self.hidden(ops, weights, batch, x)
            x = x if of_mean else ops.take_rows(x, batch.rows)
        if self.has_last_norm:
            x = apply_norm(ops, weights.output_norm, x, self.norm_eps)
        if of_mean:
            x = ops.take_rows(ops.mean_rows(x), batch.rows)
        if self.classifier is not None:
            x = self.classifier.forward(ops, weights.classifier, x)
        for matrix, activation in zip(weights.dense, self.activations, strict=True):
            x = ops.linear(x, matrix)
            x = ops.activate(x, activation) if activation else x
        return x

    def _hidden_of_rows(self, ops: Ops[A, W], weights: Any, batch: Batch[A], x: A) -> A:
        """The hidden states (R, width) of the batch's rows after all layers."""
        last, index = self.layers[-1], len(self.layers) - 1
        attention, rest = replace(last, mlp=None), replace(last, mixer=None)
        layers = zip((*self.layers[:-1], attention), weights.layers, strict=True)
        for number, (layer, of_layer) in enumerate(layers):
            x = layer.forward(ops, of_layer, x, batch.positions, number)
        x = ops.take_rows(x, batch.rows)
        return rest.forward(ops, weights.layers[-1], x, batch.positions, index)

    def logits(self, ops: Ops[A, W], weights: Any, states: A) -> A:
        """The states themselves: nobody asks an encoder for the next token."""
        return states


_ACTIVATIONS = ("gelu_erf", "gelu", "relu", "silu")


def build(hyperparameters: Hyperparameters, context: int) -> Encoder:
    """The encoder with these hyperparameters, whose norms follow the sums."""
    read = hyperparameters
    sizes = encoder_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    kind = read.choice("positions", ("table", "rotary", "slopes"), "table")
    spec = replace(
        sizes.attention(read),
        causal=False,
        bias=Slopes.of_heads(sizes.heads) if kind == "slopes" else None,
    )
    turns = rope(read, shape.head_dim, context) if kind == "rotary" else None
    attention, dense = Attention(shape.width, spec, turns), feed_forward(read, sizes)

    def layer(mlp: FeedForward) -> Layer:
        return Layer(attention, mlp, eps, NormPlacement.SUM, centred=True)

    model = Encoder(
        shape,
        tuple(layer(experts or dense) for experts in _experts(read, sizes)),
        eps,
        width=shape.width,
        embedding_width=read.integer("embedding_width", shape.width),
        first_position=read.count("first_position") if kind == "table" else None,
        segments=read.integer("segments", 1),
        separator=read.count("separator") if read.get("separator") is not None else -1,
        embedding_eps=eps,
        classifier=classifier_of(read, sizes),
        of_first=reads_first(read),
    )
    return with_dense_layers(model, read)


def with_dense_layers(model: Encoder, hyperparameters: Hyperparameters) -> Encoder:
    """The model with the dense layers of a folder, which follow the pooling.

    A layer without an activation may precede a mean, too: the mean of its results is its result of
    the mean.
    """
    read, names = hyperparameters, ("dense.0.width", "dense.1.width")
    widths = tuple(read.integer(name) for name in names if read.get(name) is not None)
    if not widths:
        return model
    listed = read.get("dense.activations")
    activations = tuple(map(str, listed)) if isinstance(listed, list) else ("",) * len(widths)
    return replace(
        model,
        shape=replace(model.shape, width=widths[-1]),
        dense_widths=widths,
        activations=activations,
        dense_of_mean=any(activations) and read.get("pooling") == "mean",
    )


def reads_first(hyperparameters: Hyperparameters) -> bool:
    """Whether texts are mostly read at their first token. Experts compute all tokens or none."""
    read = hyperparameters
    is_first = read.get("pooling") in ("cls", "rank") or bool(read.get("labels"))
    return is_first and not read.count("experts")


def feed_forward(hyperparameters: Hyperparameters, sizes: Sizes) -> MLP | GatedMLP:
    """The feed-forward layer, with gates if the checkpoint says so."""
    kind = GatedMLP if hyperparameters.flag("gated", False) else MLP
    activation = hyperparameters.choice("activation", _ACTIVATIONS, "gelu_erf")
    return kind(sizes.shape.width, sizes.mlp_width, activation)


def _experts(hyperparameters: Hyperparameters, sizes: Sizes) -> list[PlainExperts | None]:
    """The experts of each layer; None where it has a dense part."""
    read, layers = hyperparameters, sizes.shape.layers
    if not read.count("experts"):
        return [None] * layers
    activation = read.choice("activation", _ACTIVATIONS, "gelu_erf")
    used = read.integer("experts_used")
    spec = ExpertSpec(read.integer("experts"), used, "softmax", activation=activation)
    listed = read.get("expert_layers")
    if used > spec.count or not isinstance(listed, list) or len(listed) != layers:
        read.fail("experts_used", f"is {used}, or the layers with experts are not {layers} flags")
    experts = PlainExperts(sizes.shape.width, sizes.mlp_width, spec)
    return [experts if one else None for one in listed]


def encoder_sizes(hyperparameters: Hyperparameters) -> Sizes:
    """The sizes of an encoder. Its context ends with its table of positions."""
    sizes = read_sizes(hyperparameters)
    first = hyperparameters.count("first_position")
    context = sizes.shape.context - first
    if context < 1:
        rows = f"but the table of positions has {sizes.shape.context} rows"
        hyperparameters.fail("first_position", f"is {first}, {rows}; fetch the file again")
    return replace(sizes, shape=replace(sizes.shape, causal=False, context=context))


_BETWEEN = ("tanh", "relu", "gelu_erf", "gelu", "silu")


def classifier_of(hyperparameters: Hyperparameters, sizes: Sizes) -> Classifier | None:
    """The classifier that the checkpoint names the classes of, if it does."""
    read, labels = hyperparameters, hyperparameters.get("labels")
    if not isinstance(labels, list) or not labels:
        return None
    return Classifier(
        sizes.shape.width,
        len(labels),
        read.choice("classifier_activation", _BETWEEN, "tanh"),
        sizes.norm_eps,
        read.flag("classifier_mean", False),
    )
