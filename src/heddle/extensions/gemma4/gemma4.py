"""Gemma 4 (text): Gemma 3's norms and windows, and layers that differ in shape.

Google DeepMind 2026 (`transformers`, `models/gemma4`; llama.cpp, `gemma4.cpp`). What is new:

- Layers that see all positions have wider heads than those with a window, perhaps fewer of them,
  rotate only a part of a head, and may use their keys as values.
- Values have a norm without weights. Scores have no factor.
- The last layers have no keys and values. Each reads those of the last layer of its kind that has.
- Each layer may have an input of its own: a row of a table by token, plus a projection of the
  embedding. It gates a further part of the layer.
- A feed-forward layer may have experts beside it. Their router reads the hidden state itself.
- A layer ends with a factor on the hidden state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.executor import ModelShape
from heddle.extensions.gemma4 import config
from heddle.extensions.gemma4.attention import key_sources, local_rope
from heddle.extensions.gemma4.layer_inputs import LayerInputs, LayerInputWeights
from heddle.models.base import read_windows
from heddle.models.blocks import (
    Attention,
    Layer,
    LayerWeights,
    NormPlacement,
    QueryKeyNorm,
)
from heddle.models.decoder import Decoder, DecoderWeights
from heddle.models.experts import MixtureOfExperts, expert_spec
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.ops import AttentionSpec
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import NORMS_AROUND, FolderNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.models.blocks import FeedForward, Mixer
    from heddle.models.experts import MixtureWeights
    from heddle.models.ops import Batch, Loader, Ops
    from heddle.weights.hyperparameters import Hyperparameters

A = TypeVar("A")
W = TypeVar("W")

_ACTIVATION = "gelu"


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: the shapes of its layers are not supported.
    """
    read = hyperparameters
    count, width = read.integer("layers"), read.integer("width")
    windows = read_windows(read, count, period=6)
    attentions = _attentions(read, windows, width, context)
    experts = _experts(read, width)
    eps, input_width = read.number("norm_eps"), read.count("layer_input_width")
    activation = read.choice("activation", (_ACTIVATION,), _ACTIVATION)
    layers = tuple(
        Gemma4Layer(
            attention,
            GatedMLP(width, hidden, activation),
            eps,
            NormPlacement.AROUND,
            input_width=input_width,
            experts=experts,
        )
        for attention, hidden in zip(attentions, read.integers("mlp_width", count), strict=True)
    )
    widest = max((one.spec for one in attentions), key=lambda spec: spec.kv_heads * spec.head_dim)
    shape = ModelShape(
        layers=count,
        kv_heads=widest.kv_heads,
        head_dim=widest.head_dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=width,
    )
    inputs = LayerInputs(count, input_width, width, shape.vocabulary, eps)
    return Gemma4(
        shape,
        layers,
        eps,
        embedding_scale=math.sqrt(width),
        logit_cap=read.positive_or_zero("logit_cap", 0.0),
        inputs=inputs if input_width else None,
    )


def _attentions(
    read: Hyperparameters, windows: list[int], width: int, context: int
) -> list[Attention]:
    """The attention of each layer."""
    count, heads = len(windows), read.integer("heads")
    kv_heads, dims = read.integers("kv_heads", count, heads), read.integers("key_dim", count)
    if read.get("value_dim") is not None and read.integers("value_dim", count) != dims:
        label = read.label("value_dim")
        raise UnsupportedModelError(
            f"{label}: values of another width than keys are not supported", param=label
        )
    wrong = next((one for one in kv_heads if heads % one), None)
    if wrong is not None:
        read.fail("kv_heads", f"is {wrong}, which does not divide the {heads} query heads")
    found: list[Attention] = []
    for layer, (window, source) in enumerate(zip(windows, key_sources(read, windows), strict=True)):
        # Tokens of a picture may see one another where there is a window.
        runs = 1 if window else 0
        spec = AttentionSpec(heads, kv_heads[layer], dims[layer], 1.0, window, runs=runs)
        if source is not None and found[source].spec != spec:
            read.fail("shared_layers", f"makes layer {layer} read heads of another shape")
        found.append(
            Attention(
                width,
                spec,
                local_rope(read, dims[layer]) if window else rope(read, dims[layer], context, None),
                QueryKeyNorm.HEADS,
                read.number("norm_eps"),
                takes_divisors=not window,
                norms_values=True,
                keys_as_values=not window,
                source=source,
            )
        )
    return found


def _experts(read: Hyperparameters, width: int) -> MixtureOfExperts | None:
    """The experts beside each feed-forward layer; None if the model has none."""
    if not read.count("experts"):
        return None
    spec = expert_spec(read, "softmax", _ACTIVATION, normalised=True)
    return MixtureOfExperts(width, read.integer("expert_width"), spec)


@dataclass(frozen=True, slots=True)
class Gemma4LayerWeights(LayerWeights[W]):
    """Weights of a layer. What the layer lacks is None; `scale` is then 1."""

    scale: float = 1.0
    input_gate: W | None = None
    input_projection: W | None = None
    after_input: W | None = None
    experts: MixtureWeights[W] | None = None
    router_norm: W | None = None
    experts_norm: W | None = None
    after_dense: W | None = None
    after_experts: W | None = None


@dataclass(frozen=True, slots=True)
class Gemma4Layer(Layer):
    """A layer with experts beside its feed-forward part, and with an input of its own.

    Attributes:
        input_width: elements of the layer's own input; 0: none.
        experts: the experts; None: none.
    """

    mixer: Mixer
    mlp: FeedForward
    input_width: int = 0
    experts: MixtureOfExperts | None = None

    def load(self, loader: Loader[W], name: str) -> Gemma4LayerWeights[W]:
        """Claim the tensors under `name`."""
        base, width, inputs = Layer.load(self, loader, name), self.mixer.width, self.input_width
        mixture = self.experts

        def norm(part: str, needed: object) -> W | None:
            return loader.vector(f"{name}.{part}", width) if needed else None

        def linear(part: str, rows: int, columns: int) -> W | None:
            return loader.linear(f"{name}.{part}", rows, columns) if inputs else None

        scaled = loader.has(f"{name}.scale")
        return Gemma4LayerWeights(
            base.attention_norm,
            base.mixer,
            base.after_attention,
            base.mlp_norm,
            base.mlp,
            base.after_mlp,
            scale=loader.constants(f"{name}.scale", 1)[0] if scaled else 1.0,
            input_gate=linear("input.gate", inputs, width),
            input_projection=linear("input.projection", width, inputs),
            after_input=norm("post_input_norm", inputs),
            experts=mixture.load(loader, f"{name}.mlp") if mixture else None,
            router_norm=norm("mlp.router_norm", mixture),
            experts_norm=norm("experts_norm", mixture),
            after_dense=norm("post_dense_norm", mixture),
            after_experts=norm("post_experts_norm", mixture),
        )

    def compute(
        self,
        ops: Ops[A, W],
        weights: Gemma4LayerWeights[W],
        x: A,
        positions: A,
        index: int,
        inputs: A | None,
    ) -> A:
        """The hidden state (T, width) after layer `index`. `inputs` are the layer's own."""
        h = self._norm(ops, x, weights.attention_norm)
        h = self.mixer.forward(ops, weights.mixer, h, positions, index)
        x = self._add(ops, x, h, weights.after_attention)
        h = self.mlp.forward(ops, weights.mlp, self._norm(ops, x, weights.mlp_norm))
        if weights.experts is not None:
            h = self._norm(ops, h, weights.after_dense)
            h = ops.add(h, self._experts(ops, weights, weights.experts, x))
        x = self._add(ops, x, h, weights.after_mlp)
        if inputs is not None and weights.input_gate is not None:
            h = ops.gated(ops.linear(x, weights.input_gate), inputs, _ACTIVATION)
            assert weights.input_projection is not None, "loaded with the gate"
            h = ops.linear(h, weights.input_projection)
            x = self._add(ops, x, h, weights.after_input)
        return x if weights.scale == 1.0 else ops.scale(x, weights.scale)

    def _experts(
        self, ops: Ops[A, W], weights: Gemma4LayerWeights[W], experts: MixtureWeights[W], x: A
    ) -> A:
        """The result (T, width) of the experts, normed."""
        routed = self._norm(ops, x, weights.router_norm)
        routed = ops.scale(routed, 1 / math.sqrt(self.mixer.width))
        logits = ops.linear(routed, experts.router)
        h = self._norm(ops, x, weights.experts_norm)
        h = ops.experts(h, logits, experts.experts, experts.spec)
        return self._norm(ops, h, weights.after_experts)


@dataclass(frozen=True, slots=True)
class Gemma4Weights(DecoderWeights[W]):
    """Weights of the model; `inputs` are None if the layers have no inputs of their own."""

    inputs: LayerInputWeights[W] | None = None


@dataclass(frozen=True, slots=True)
class Gemma4(Decoder):
    """A decoder whose layers may have inputs of their own; None: they have none."""

    inputs: LayerInputs | None = None

    def load(self, loader: Loader[W]) -> Gemma4Weights[W]:
        """Claim all tensors."""
        base = Decoder.load(self, loader)
        inputs = None if self.inputs is None else self.inputs.load(loader)
        return Gemma4Weights(
            base.embedding, base.layers, base.output_norm, base.output, base.dense, inputs
        )

    def hidden(self, ops: Ops[A, W], weights: DecoderWeights[W], batch: Batch[A], x: A) -> A:
        """The hidden states (T, width) after all layers."""
        assert isinstance(weights, Gemma4Weights), "made by `load`"
        inputs = self._inputs(ops, weights, batch, x)
        for index, layer in enumerate(self.layers):
            own = weights.layers[index]
            assert isinstance(layer, Gemma4Layer), "made by `build`"
            assert isinstance(own, Gemma4LayerWeights), "made by `load`"
            x = layer.compute(ops, own, x, batch.positions, index, next(inputs))
        return x

    def _inputs(
        self, ops: Ops[A, W], weights: Gemma4Weights[W], batch: Batch[A], x: A
    ) -> Iterator[A] | Iterator[None]:
        """The input of each layer, from scaled embeddings x."""
        if self.inputs is None or weights.inputs is None:
            return repeat(None)
        return self.inputs.of_layers(ops, weights.inputs, batch.tokens, x)


FAMILY = Family(
    build=build,
    gguf={
        "gemma4": GGUFNames(
            hyperparameters={
                "layer_input_width": "embedding_length_per_layer_input",
            },
            outside={
                "layer_inputs.embedding": "per_layer_token_embd",
                "layer_inputs.projection": "per_layer_model_proj",
                "layer_inputs.norm": "per_layer_proj_norm",
            },
            layer={
                "scale": "layer_output_scale",
                "input.gate": "inp_gate",
                "input.projection": "proj",
                "post_input_norm": "post_norm",
                "experts_norm": "pre_ffw_norm_2",
                "post_dense_norm": "post_ffw_norm_1",
                "post_experts_norm": "post_ffw_norm_2",
            },
            tensors={
                "mlp.router_norm.weight": "ffn_gate_inp.scale",
                "mlp.expert_scales.weight": "ffn_down_exps.scale",
            },
        )
    },
    hf={
        "gemma4_text": FolderNames(
            hyperparameters={
                "layer_input_width": "hidden_size_per_layer_input",
            },
            outside={
                "layer_inputs.embedding": "model.embed_tokens_per_layer",
                "layer_inputs.projection": "model.per_layer_model_projection",
                "layer_inputs.norm": "model.per_layer_projection_norm",
            },
            layer=NORMS_AROUND
            | {
                "input.gate": "per_layer_input_gate",
                "input.projection": "per_layer_projection",
                "post_input_norm": "post_per_layer_input_norm",
                "experts_norm": "pre_feedforward_layernorm_2",
                "post_dense_norm": "post_feedforward_layernorm_1",
                "post_experts_norm": "post_feedforward_layernorm_2",
                "mlp.router": "router.proj",
                "mlp.experts.gate": "experts.gate_up_proj",
                "mlp.experts.up": "experts.gate_up_proj",
            },
            tensors={
                "scale.weight": "layer_scalar",
                "mlp.router_norm.weight": "router.scale",
                "mlp.expert_scales.weight": "router.per_expert_scale",
                "mlp.experts.down.weight": "experts.down_proj",
            },
            with_images=("gemma4",),
            read=config.layer_sizes,
        )
    },
)
