"""BART's sequence classifiers: an encoder, and a decoder that reads the same text one token later.

Lewis et al. 2020 (arXiv:1910.13461), section 3.1: the classifier reads the decoder's state of the
last token, which sees all of the text. Norms follow the sums. Facts about files: `transformers`
(`modeling_bart.py`). There, the classifier reads the last `</s>`, with which its tokenizer ends
each text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.extensions.encoders.encoder import (
    Classifier,
    ClassifierWeights,
    classifier_of,
    feed_forward,
)
from heddle.extensions.encoders.files import ACTIVATIONS, check_values, read_labels
from heddle.models.base import read_sizes
from heddle.models.blocks import (
    Attention,
    Layer,
    LayerNormWeights,
    LayerWeights,
    NormPlacement,
    apply_norm,
    load_norm,
)
from heddle.models.decoder import Decoder, DecoderWeights
from heddle.models.family import Family
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.models.ops import Batch, Loader, Ops
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_FIRST_POSITION = 2
"""Tables of positions begin with two unused rows, whatever the id of the padding token is."""


@dataclass(frozen=True, slots=True)
class _CrossAttention(Attention):
    """Attention to the states that the encoder made of the same text."""

    def forward(self, ops: Ops[A, W], weights: Any, x: A, positions: A, layer: int) -> A:
        """`weights` are these states (T, width), and what `load` returned."""
        states, own = weights
        q, k, v = ops.linear(x, own.q), ops.linear(states, own.k), ops.linear(states, own.v)
        return ops.linear(ops.attend(q, k, v, layer, self.spec), own.output)


@dataclass(frozen=True, slots=True)
class _CrossLayer(Layer):
    """The second half of the decoder's layers: attention to the encoder, and the feed-forward part.

    The first half is a layer with its own number, because both halves keep keys and values.
    """

    def load(self, loader: Loader[W], name: str) -> LayerWeights[W]:
        reads = Layer.load(replace(self, mlp=None), loader, f"{name}.cross")
        rest = Layer.load(replace(self, mixer=None), loader, name)
        return replace(rest, mixer=reads.mixer, after_attention=reads.after_attention)


@dataclass(frozen=True, slots=True)
class _Places(Generic[W]):
    """A table of positions and a norm, which embeddings pass before the first layer."""

    positions: W
    norm: W | LayerNormWeights[W]


@dataclass(frozen=True, slots=True, kw_only=True)
class BartWeights(DecoderWeights[W]):
    """Weights of both halves. `output_norm` and `output` have no use."""

    encoder: _Places[W]
    decoder: _Places[W]
    classifier: ClassifierWeights[W]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bart(Decoder):
    """A classifier bound to one checkpoint's hyperparameters.

    Attributes:
        encoder_layers: number of layers of the encoder, which come first. Two of the other layers
            together are one layer of the decoder.
        start: the token that the decoder reads before the first token of a text.
        classifier: computes the logits of a text.
    """

    encoder_layers: int
    start: int
    classifier: Classifier

    def load(self, loader: Loader[W]) -> BartWeights[W]:
        """Claim all tensors."""
        width, first = self.shape.width, self.encoder_layers

        def places(part: str) -> _Places[W]:
            rows = self.shape.context + _FIRST_POSITION
            return _Places(
                loader.embedding(f"{part}.positions", rows, width),
                load_norm(loader, f"{part}.embedding_norm", width, centred=True),
            )

        embedding = loader.embedding("embedding", self.shape.vocabulary, width)
        numbers = (i if i < first else first + (i - first) // 2 for i in range(len(self.layers)))
        return BartWeights(
            embedding=embedding,
            layers=tuple(
                layer.load(loader, f"layers.{number}")
                for layer, number in zip(self.layers, numbers, strict=True)
            ),
            output_norm=embedding,
            output=embedding,
            encoder=places("encoder"),
            decoder=places("decoder"),
            classifier=ClassifierWeights(
                pooler=loader.linear("pooler", width, width),
                norm=None,
                output=loader.linear("classifier", self.classifier.labels, width),
            ),
        )

    def forward(self, ops: Ops[A, W], weights: Any, batch: Batch[A]) -> A:
        """The logits (R, labels) of the texts whose last tokens are the batch's rows."""
        first = self.encoder_layers
        found = ops.embed(weights.embedding, batch.tokens)
        states = self._placed(ops, weights.encoder, batch, found)
        for i, layer in enumerate(self.layers[:first]):
            states = layer.forward(ops, weights.layers[i], states, batch.positions, i)
        found = ops.embed_previous(weights.embedding, batch.tokens, self.start)
        x = self._placed(ops, weights.decoder, batch, found)
        for i, layer in enumerate(self.layers[first:], first):
            own = weights.layers[i]
            if isinstance(layer, _CrossLayer):
                own = replace(own, mixer=(states, own.mixer))
            x = layer.forward(ops, own, x, batch.positions, i)
        return self.classifier.forward(ops, weights.classifier, ops.take_rows(x, batch.rows))

    def _placed(self, ops: Ops[A, W], weights: _Places[W], batch: Batch[A], x: A) -> A:
        """What the first layer reads, from the rows of tokens x (T, width)."""
        x = x if self.embedding_scale == 1.0 else ops.scale(x, self.embedding_scale)
        x = ops.add(x, ops.embed(weights.positions, batch.positions, _FIRST_POSITION))
        return apply_norm(ops, weights.norm, x, self.norm_eps)

    def logits(self, ops: Ops[A, W], weights: Any, states: A) -> A:
        """Return the states: a classifier has no logits of a next token."""
        return states


def build(hyperparameters: Hyperparameters, context: int) -> Bart:
    """The classifier with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps, start = sizes.shape, sizes.norm_eps, read.count("decoder_start", 2)
    if shape.width % sizes.heads:
        label = read.label("width")
        read.fail("heads", f"is {sizes.heads}, which does not divide {label} {shape.width}")
    if start >= shape.vocabulary:
        read.fail("decoder_start", f"is {start}, but there are {shape.vocabulary} token ids")
    classifier = classifier_of(read, sizes)
    assert classifier is not None, "`_read` refuses other models"
    spec, mlp = replace(sizes.attention(read), causal=False), feed_forward(read, sizes)
    both, before = (Attention(shape.width, replace(spec, causal=c), None) for c in (False, True))
    cross = _CrossAttention(shape.width, spec, None)
    layers = (
        *(Layer(both, mlp, eps, NormPlacement.SUM, centred=True),) * shape.layers,
        *(
            Layer(before, None, eps, NormPlacement.SUM, centred=True),
            _CrossLayer(cross, mlp, eps, NormPlacement.SUM, centred=True),
        )
        * read.integer("decoder_layers"),
    )
    return Bart(
        replace(shape, causal=False, layers=len(layers)),
        layers,
        eps,
        embedding_scale=read.number("embedding_scale", 1.0),
        encoder_layers=shape.layers,
        start=start,
        classifier=classifier,
    )


_SUPPORTED: dict[str, tuple[object, ...]] = {
    "activation_function": tuple(ACTIVATIONS),
    "scale_embedding": (False, True),
    "normalize_before": (False,),
    "normalize_embedding": (True,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (False,),
}
_OF_BOTH = ("attention_heads", "ffn_dim")
"""Sizes that encoder and decoder share here."""


def _read(config: Config) -> Config:
    """Refuse what changes the forward pass. `transformers` has 3 classes by default.

    Raises:
        ModelFileError: `num_labels` is no number of classes.
        UnsupportedModelError: the model is no classifier, or has parts of another kind.
    """
    check_values(config, _SUPPORTED)
    for size in _OF_BOTH:
        if (wanted := config.get(f"encoder_{size}")) is not None:
            check_values(config, {f"decoder_{size}": (wanted,)})
    found = dict(read_labels({"num_labels": 3} | config))
    if not found:
        raise UnsupportedModelError(
            f"config.json: architectures {config.get('architectures')!r} is not supported;"
            " supported: BartForSequenceClassification",
            param="architectures",
        )
    found["activation"] = ACTIVATIONS[str(config.get("activation_function", "gelu"))]
    width = config.get("d_model")
    if config.get("scale_embedding") and isinstance(width, int) and width > 0:
        found["embedding_scale"] = math.sqrt(width)
    return found


_ATTENTION = {
    "attention.output": "self_attn.out_proj",
    "post_attention_norm": "self_attn_layer_norm",
}

FAMILY = Family(
    build=build,
    gguf={},
    hf={
        "bart": FolderNames(
            hyperparameters={
                "width": "d_model",
                "heads": "encoder_attention_heads",
                "layers": "encoder_layers",
                "mlp_width": "encoder_ffn_dim",
                "decoder_layers": "decoder_layers",
                "decoder_start": "decoder_start_token_id",
            },
            values={"causal": False, "norm_eps": 1e-5, "classifier_last": True},
            outside={
                "embedding": "model.shared",
                **{
                    f"{half}.{part}": f"model.{half}.{stored}"
                    for half in ("encoder", "decoder")
                    for part, stored in (
                        ("positions", "embed_positions"),
                        ("embedding_norm", "layernorm_embedding"),
                    )
                },
                "pooler": "classification_head.dense",
                "classifier": "classification_head.out_proj",
            },
            layer={
                **_ATTENTION,
                **{f"cross.attention.{one}": f"encoder_attn.{one}_proj" for one in "qkv"},
                **{
                    f"cross.{part}": stored.replace("self_attn", "encoder_attn")
                    for part, stored in _ATTENTION.items()
                },
                "mlp.up": "fc1",
                "mlp.down": "fc2",
                "post_mlp_norm": "final_layer_norm",
            },
            aliases={
                f"{half}.embed_tokens.weight": "embedding.weight" for half in ("encoder", "decoder")
            },
            layers=("encoder.layers.",),
            head_layers="model.decoder.layers.",
            read=_read,
        ),
    },
)
