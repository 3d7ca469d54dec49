"""Gemma 3n (text): as Gemma 4, with streams of hidden states.

Google DeepMind 2025 (`transformers`, `models/gemma3n`; llama.cpp, `gemma3n-iswa.cpp`). Beside what
it shares with Gemma 4 (inputs of layers, shared keys and values, scores without a factor):

- A layer computes one of several streams; see `streams.py`.
- A second, narrow path goes around attention: laurel(y) = y + norm(right(left(y))), where y is what
  attention reads (learned augmented residual layer).
- Feed-forward layers near the input cut most of their gates; see `sparse_mlp.py`.
- The layer's own input reads the active stream, and changes all streams but the first.

`transformers` limits the factors of streams (`altup_coef_clip`) only while it trains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.executor import ModelShape
from heddle.extensions.gemma3n import config
from heddle.extensions.gemma3n.sparse_mlp import SparseMLP
from heddle.extensions.gemma3n.streams import LayerStreamWeights, Streams, StreamWeights
from heddle.extensions.gemma4.attention import key_sources, local_rope
from heddle.extensions.gemma4.layer_inputs import LayerInputs, LayerInputWeights
from heddle.models.base import read_windows
from heddle.models.blocks import Attention, Layer, LayerWeights, NormPlacement, QueryKeyNorm
from heddle.models.decoder import Decoder, DecoderWeights
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.ops import AttentionSpec
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import NORMS_AROUND, FolderNames

if TYPE_CHECKING:
    from heddle.models.blocks import FeedForward, Mixer
    from heddle.models.ops import Batch, Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_ACTIVATION = "gelu"
_MOST_STREAMS = 16
_LARGEST_CUT = 100
"""Standard deviations; 8 of them are more than any float32 below 1 stands for."""
_CUT_LAYERS, _CUT_SHARE = 10, 0.95
"""Layers that cut gates, and how many, if the files do not say: that of the published models."""


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: the shapes of its layers are not supported.
    """
    read = hyperparameters
    count, width, eps = read.integer("layers"), read.integer("width"), read.number("norm_eps")
    hidden, attentions = read.integers("mlp_width", count), _attentions(read, width, context)
    streams, spec = _streams(read, width, eps), attentions[0].spec
    activation = read.choice("activation", (_ACTIVATION,), _ACTIVATION)
    input_width = read.integer("layer_input_width")
    rank = read.integer("bypass_rank")
    layers = tuple(
        Gemma3nLayer(
            mixer=attention,
            mlp=GatedMLP(width, size, activation)
            if cut is None
            else SparseMLP(width, size, activation, cut),
            norm_eps=eps,
            norms=NormPlacement.AROUND,
            streams=streams,
            bypass_rank=rank,
            input_width=input_width,
        )
        for attention, size, cut in zip(attentions, hidden, _cuts(read, count), strict=True)
    )
    shape = ModelShape(
        layers=count,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=width,
    )
    rows = read.integer("layer_input_rows", shape.vocabulary)
    return Gemma3n(
        shape,
        layers,
        eps,
        embedding_scale=math.sqrt(width),
        logit_cap=read.positive_or_zero("logit_cap", 30.0),
        streams=streams,
        inputs=LayerInputs(count, input_width, width, rows, eps),
    )


def _streams(read: Hyperparameters, width: int, eps: float) -> Streams:
    """The streams of hidden states."""
    count, active = read.integer("streams"), read.count("active_stream")
    if not 2 <= count <= _MOST_STREAMS:
        read.fail("streams", f"must be from 2 to {_MOST_STREAMS}, got {count}")
    if active >= count:
        read.fail("active_stream", f"must be less than the {count} streams, got {active}")
    return Streams(count, active, width, eps)


def _attentions(read: Hyperparameters, width: int, context: int) -> list[Attention]:
    """The attention of each layer."""
    heads, dim = read.integer("heads"), read.integer("key_dim")
    kv_heads, windows = (
        read.integer("kv_heads", heads),
        read_windows(read, read.integer("layers"), 5),
    )
    if heads % kv_heads:
        read.fail("kv_heads", f"is {kv_heads}, which does not divide the {heads} query heads")
    if read.integer("value_dim", dim) != dim:
        label = read.label("value_dim")
        raise UnsupportedModelError(
            f"{label}: values of another width than keys are not supported", param=label
        )
    near, far = local_rope(read, dim), rope(read, dim, context, 1_000_000.0)
    return [
        Attention(
            width,
            AttentionSpec(heads, kv_heads, dim, 1.0, window),
            near if window else far,
            QueryKeyNorm.HEADS,
            read.number("norm_eps"),
            norms_values=True,
            source=source,
        )
        for window, source in zip(windows, key_sources(read, windows), strict=True)
    ]


def _cuts(read: Hyperparameters, layers: int) -> list[float | None]:
    """For each layer, above how many standard deviations it keeps gates; None: it keeps all."""
    given = read.get("gate_cuts")
    if given is None:
        cut = config.cut_of(_CUT_SHARE)
        return [cut if layers > _CUT_LAYERS > layer else None for layer in range(layers)]
    if not isinstance(given, list) or len(given) != layers:
        read.fail("gate_cuts", f"must have {layers} entries, got {given!r}")
    for cut in given:
        if type(cut) not in (int, float) or not (abs(cut) <= _LARGEST_CUT or cut == -math.inf):
            read.fail("gate_cuts", f"must be numbers up to {_LARGEST_CUT}, got {cut!r}")
    return [None if cut == -math.inf else float(cut) for cut in given]


@dataclass(frozen=True, slots=True)
class Gemma3nLayerWeights(LayerWeights[W]):
    """Weights of a layer."""

    streams: LayerStreamWeights[W]
    bypass_in: W
    bypass_out: W
    bypass_norm: W
    input_scale: W
    zeros: W
    input_gate: W
    input_projection: W
    after_input: W


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3nLayer(Layer):
    """A layer of several streams, with a narrow path around attention and an input of its own.

    Attributes:
        streams: the streams.
        bypass_rank: width of the narrow path.
        input_width: elements of the layer's own input.
    """

    mixer: Mixer
    mlp: FeedForward
    streams: Streams
    bypass_rank: int
    input_width: int

    def load(self, loader: Loader[W], name: str) -> Gemma3nLayerWeights[W]:
        """Claim the tensors under `name`."""
        base, width = Layer.load(self, loader, name), self.mixer.width
        rank, inputs = self.bypass_rank, self.input_width
        return Gemma3nLayerWeights(
            base.attention_norm,
            base.mixer,
            base.after_attention,
            base.mlp_norm,
            base.mlp,
            base.after_mlp,
            streams=self.streams.load_layer(loader, name),
            bypass_in=loader.linear(f"{name}.bypass.in", rank, width),
            bypass_out=loader.linear(f"{name}.bypass.out", width, rank),
            bypass_norm=loader.vector(f"{name}.bypass.norm", width),
            input_scale=loader.vector(f"{name}.input.scale", width),
            zeros=loader.filled(width, 0.0),
            input_gate=loader.linear(f"{name}.input.gate", inputs, width),
            input_projection=loader.linear(f"{name}.input.projection", width, inputs),
            after_input=loader.vector(f"{name}.post_input_norm", width),
        )

    def compute(
        self,
        ops: Ops[A, W],
        weights: Gemma3nLayerWeights[W],
        streams: A,
        positions: A,
        index: int,
        inputs: A,
    ) -> A:
        """All streams (T, count * width) after layer `index`. `inputs` are the layer's own."""
        predicted = self.streams.predict(ops, weights.streams, streams)
        x = self.streams.active_of(ops, predicted)
        h = self._norm(ops, x, weights.attention_norm)
        around = ops.linear(ops.linear(h, weights.bypass_in), weights.bypass_out)
        around = ops.add(h, self._norm(ops, around, weights.bypass_norm))
        h = self.mixer.forward(ops, weights.mixer, h, positions, index)
        x = ops.add(self._add(ops, x, h, weights.after_attention), around)
        x = ops.scale(x, math.sqrt(0.5))
        h = self.mlp.forward(ops, weights.mlp, self._norm(ops, x, weights.mlp_norm))
        x = self._add(ops, x, h, weights.after_mlp)
        streams = self.streams.correct(ops, weights.streams, predicted, x)
        return self.streams.add_to_rest(ops, streams, self._input(ops, weights, streams, inputs))

    def _input(self, ops: Ops[A, W], weights: Gemma3nLayerWeights[W], streams: A, own: A) -> A:
        """What the layer's own input (T, input_width) makes of the active stream: (T, width)."""
        x = self.streams.active_of(ops, streams)
        # Of a layer norm without weights, the bias stays: a factor for each column.
        factors = ops.layer_norm(x, weights.zeros, weights.input_scale, self.norm_eps)
        gate = ops.linear(ops.gated(x, factors, "identity"), weights.input_gate)
        h = ops.linear(ops.gated(gate, own, _ACTIVATION), weights.input_projection)
        return self._norm(ops, h, weights.after_input)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3nWeights(DecoderWeights[W]):
    """Weights of the model."""

    streams: StreamWeights[W]
    inputs: LayerInputWeights[W]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3n(Decoder):
    """A decoder with several streams, whose layers have inputs of their own."""

    streams: Streams
    inputs: LayerInputs

    def load(self, loader: Loader[W]) -> Gemma3nWeights[W]:
        """Claim all tensors."""
        base = Decoder.load(self, loader)
        return Gemma3nWeights(
            base.embedding,
            base.layers,
            base.output_norm,
            base.output,
            base.dense,
            streams=self.streams.load(loader),
            inputs=self.inputs.load(loader),
        )

    def hidden(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A], x: A) -> A:
        """The hidden states (T, width) after all layers."""
        assert isinstance(weights, Gemma3nWeights), "made by `load`"
        inputs = self.inputs.of_layers(ops, weights.inputs, batch.tokens, x)
        streams = self.streams.spread(ops, weights.streams, x)
        for index, layer in enumerate(self.layers):
            own = weights.layers[index]
            assert isinstance(layer, Gemma3nLayer), "made by `build`"
            assert isinstance(own, Gemma3nLayerWeights), "made by `load`"
            streams = layer.compute(ops, own, streams, batch.positions, index, next(inputs))
        return self.streams.merge(ops, weights.streams, streams)


_OUTSIDE = {
    "layer_inputs.embedding": ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    "layer_inputs.projection": ("per_layer_model_proj", "model.per_layer_model_projection"),
    "layer_inputs.norm": ("per_layer_proj_norm", "model.per_layer_projection_norm"),
    "streams.spread": ("altup_proj", "model.altup_projections"),
    "streams.merge": ("altup_unembd_proj", "model.altup_unembed_projections"),
}
_LAYER = {
    "streams.router_norm": ("altup_router_norm", "altup.router_norm"),
    "streams.router": ("altup_router", "altup.modality_router"),
    "streams.prediction": ("altup_predict_coef", "altup.prediction_coefs"),
    "streams.correction": ("altup_correct_coef", "altup.correction_coefs"),
    "bypass.in": ("laurel_l", "laurel.linear_left"),
    "bypass.out": ("laurel_r", "laurel.linear_right"),
    "bypass.norm": ("laurel_post_norm", "laurel.post_laurel_norm"),
    "input.gate": ("inp_gate", "per_layer_input_gate"),
    "input.projection": ("proj", "per_layer_projection"),
    "post_input_norm": ("post_norm", "post_per_layer_input_norm"),
}
"""Names in GGUF files and in folders, by canonical part."""

_DEFAULTS: dict[str, object] = {
    "streams": 4,
    "active_stream": 0,
    "bypass_rank": 64,
    "layer_input_width": 256,
}
"""Those of the published models. GGUF has no key for the rank."""


FAMILY = Family(
    build=build,
    gguf={
        "gemma3n": GGUFNames(
            hyperparameters={
                "streams": "altup.num_inputs",
                "active_stream": "altup.active_idx",
                "gate_cuts": "activation_sparsity_scale",
                "layer_input_width": "embedding_length_per_layer_input",
            },
            values=_DEFAULTS,
            outside={part: names[0] for part, names in _OUTSIDE.items()},
            layer={part: names[0] for part, names in _LAYER.items()}
            | {"input.scale": "altup_correct_scale"},
        )
    },
    hf={
        "gemma3n_text": FolderNames(
            hyperparameters={
                "streams": "altup_num_inputs",
                "active_stream": "altup_active_idx",
                "bypass_rank": "laurel_rank",
                "gate_cuts": "activation_sparsity_pattern",
                "layer_input_width": "hidden_size_per_layer_input",
                "layer_input_rows": "vocab_size_per_layer_input",
            },
            values=_DEFAULTS,
            outside={part: names[1] for part, names in _OUTSIDE.items()},
            layer=NORMS_AROUND | {part: names[1] for part, names in _LAYER.items()},
            tensors={"input.scale.weight": "altup.correct_output_scale"},
            window_period=5,
            with_images=("gemma3n",),
            read=config.read_config,
            make=config.stacked_streams,
        )
    },
)
