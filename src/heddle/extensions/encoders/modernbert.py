"""ModernBERT: rotary positions, gates, norms before the parts, two of three layers with a window.

Warner et al. 2024 (arXiv:2412.13663). The first layer has no norm before attention, and most
checkpoints have no bias. Facts about files: `transformers`, and llama.cpp
(`src/models/modern-bert.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, TypeVar

from heddle.errors import UnsupportedModelError
from heddle.extensions.encoders.encoder import (
    Encoder,
    classifier_of,
    encoder_sizes,
    feed_forward,
    reads_first,
    with_dense_layers,
)
from heddle.extensions.encoders.files import (
    ACTIVATIONS,
    GGUF_KEYS,
    GGUF_OUTSIDE,
    GGUF_VALUES,
    by_layer,
    read_gguf,
    read_labels,
)
from heddle.models.base import read_windows
from heddle.models.blocks import Attention, Layer, LayerWeights, load_norm
from heddle.models.family import Family
from heddle.models.ops import RopeSpec
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from heddle.models.ops import Loader
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

W = TypeVar("W")
_PERIOD = 3


@dataclass(frozen=True, slots=True)
class _FirstLayer(Layer):
    """A layer without a norm before attention: that of the embeddings takes its place."""

    def load(self, loader: Loader[W], name: str) -> LayerWeights[W]:
        mixer, mlp = self.mixer, self.mlp
        assert mixer is not None, "the layer has attention"
        assert mlp is not None, "the layer has a feed-forward part"
        return LayerWeights(
            attention_norm=None,
            mixer=mixer.load(loader, name),
            after_attention=None,
            mlp_norm=load_norm(loader, f"{name}.mlp_norm", mlp.width, centred=True),
            mlp=mlp.load(loader, f"{name}.mlp"),
            after_mlp=None,
        )


def build(hyperparameters: Hyperparameters, context: int) -> Encoder:
    """The encoder with these hyperparameters. A window has half of its positions on each side."""
    read = hyperparameters
    sizes = encoder_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    everywhere = rope(read, shape.head_dim, context)
    local_base = read.number("rope.local_base", everywhere.base)
    nearby = RopeSpec(everywhere.dim, local_base, everywhere.interleaved)
    mlp = feed_forward(read, sizes)
    spec = replace(sizes.attention(read), causal=False)

    def layer(number: int, window: int) -> Layer:
        own = replace(spec, window=window // 2 + 1 if window else 0)
        attention = Attention(shape.width, own, nearby if window else everywhere)
        return (Layer if number else _FirstLayer)(attention, mlp, eps, centred=True)

    model = Encoder(
        shape,
        tuple(starmap(layer, enumerate(read_windows(read, shape.layers)))),
        eps,
        width=shape.width,
        embedding_width=shape.width,
        embedding_eps=eps,
        has_last_norm=True,
        classifier=classifier_of(read, sizes),
        of_first=reads_first(read),
    )
    return with_dense_layers(model, read)


def _windowed(layers: object, period: object) -> dict[str, object]:
    """The layers with a window: all but every third, from the first on."""
    if not isinstance(period, int) or period < 1:
        return {}
    return {"window_layers": by_layer(layers, lambda layer: layer % period > 0)}


def _read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    read_gguf(values, metadata)
    values |= _windowed(values.get("layers"), values.pop("window_period", _PERIOD))


def _read_config(config: Config) -> Config:
    """The keys of rope and windows before `transformers` 5, too."""
    found = dict(read_labels(config))
    found["window"] = config.get("local_attention", 128)
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        found["window_layers"] = [kind == "sliding_attention" for kind in kinds]
    else:
        period = config.get("global_attn_every_n_layers", _PERIOD)
        found |= _windowed(config.get("num_hidden_layers"), period)
    if not config.get("rope_parameters"):
        found["rope.base"] = config.get("global_rope_theta", 160_000.0)
        found["rope.local_base"] = config.get("local_rope_theta", 10_000.0)
    activation = config.get("classifier_activation", "gelu")
    if str(activation) not in _BETWEEN:
        raise UnsupportedModelError(
            f"config.json: classifier_activation {activation!r} is not supported; supported:"
            f" {', '.join(_BETWEEN)}",
            param="classifier_activation",
        )
    found["classifier_activation"] = _BETWEEN[str(activation)]
    found["classifier_mean"] = config.get("classifier_pooling", "cls") == "mean"
    return found


_BETWEEN = {"gelu": "gelu_erf", "silu": "silu", "relu": "relu", "tanh": "tanh"}
_VALUES: dict[str, object] = {"causal": False, "gated": True}

FAMILY = Family(
    build=build,
    gguf={
        "modern-bert": GGUFNames(
            hyperparameters=GGUF_KEYS,
            values={**GGUF_VALUES, **_VALUES, "classifier_activation": "gelu_erf"},
            outside=GGUF_OUTSIDE,
            layer={"mlp.gate_up": "ffn_up", "mlp.gate": "", "mlp.up": ""},
            fused=("attention.qkv", "mlp.gate_up"),
            read=_read_gguf,
        ),
    },
    hf={
        "modernbert": FolderNames(
            hyperparameters={"norm_eps": "norm_eps"},
            values=_VALUES,
            outside={
                "embedding": "model.embeddings.tok_embeddings",
                "embedding_norm": "model.embeddings.norm",
                "output_norm": "model.final_norm",
                "pooler": "head.dense",
                "pooler_norm": "head.norm",
                "classifier": "classifier",
            },
            layer={
                "attention_norm": "attn_norm",
                "attention.qkv": "attn.Wqkv",
                "attention.output": "attn.Wo",
                "mlp_norm": "mlp_norm",
                "mlp.gate_up": "mlp.Wi",
                "mlp.down": "mlp.Wo",
            },
            activations=ACTIVATIONS,
            read=_read_config,
        ),
    },
)
