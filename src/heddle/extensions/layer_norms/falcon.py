"""Falcon 7B, 40B, 180B and Falcon 2: layer norms, parts of a layer beside each other, no biases.

In the larger ones, each part has a norm of its own. Almazrouei et al. 2023 (arXiv:2311.16867);
`transformers`, `falcon`. Falcon-RW, which has ALiBi, is refused. Falcon 3 is a Llama.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from heddle.extensions.decoders.joined import made_of, of_groups
from heddle.extensions.layer_norms.activations import SUPPORTED, activation_of, require
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer, load_norm
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import MLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.blocks import LayerWeights
    from heddle.models.ops import Loader
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored
    from heddle.weights.hyperparameters import Hyperparameters

W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class FalconLayer(Layer):
    """If there are two norms, files call that of the feed-forward layer the first one."""

    def load(self, loader: Loader[W], name: str) -> LayerWeights[W]:
        """See :meth:`Layer.load`."""
        weights, second = Layer.load(self, loader, name), f"{name}.second_norm"
        if not loader.has(second):
            return weights
        assert self.mixer is not None, "a layer of Falcon has attention"
        norm = load_norm(loader, second, self.mixer.width, centred=True)
        return replace(weights, attention_norm=norm, mlp_norm=weights.attention_norm)


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    attention = Attention(shape.width, sizes.attention(read), rope(read, shape.head_dim, context))
    mlp = MLP(shape.width, sizes.mlp_width, read.choice("activation", SUPPORTED, "gelu_erf"))
    layer = FalconLayer(attention, mlp, eps, centred=True, parallel=True)
    return Decoder(shape, (layer,) * shape.layers, eps)


def _groups(config: Config) -> object:
    """Key/value heads, as `transformers` reads them."""
    heads = config.get("num_attention_heads")
    if config.get("new_decoder_architecture") or not config.get("multi_query", True):
        return config.get("num_kv_heads") or heads
    return 1


def _read(config: Config) -> Config:
    require(config, "alibi", value=False)
    if not config.get("new_decoder_architecture"):
        require(config, "parallel_attn", value=True)
    width = config.get("hidden_size")
    found = activation_of(config, "activation", "gelu") | {"kv_heads": _groups(config)}
    if config.get("ffn_hidden_size") is None and isinstance(width, int):
        found["mlp_width"] = 4 * width
    if config.get("max_position_embeddings") is None:
        found["context"] = 2048
    return found


def _make(tensors: Mapping[str, Stored], config: Config) -> dict[str, MadeTensor]:
    heads, groups = config.get("num_attention_heads"), _groups(config)
    if not isinstance(heads, int) or not isinstance(groups, int) or heads < 1 or groups < 1:
        return {}  # the size is refused by name when the model is built
    return made_of(tensors, "h.", {"self_attention.query_key_value": of_groups(heads, groups)})


FAMILY = Family(
    build=build,
    gguf={
        "falcon": GGUFNames(
            hyperparameters={"norm_eps": "attention.layer_norm_epsilon"},
            layer={"second_norm": "attn_norm_2"},
            fused=("attention.qkv",),
        )
    },
    hf={
        "falcon": FolderNames(
            hyperparameters={"mlp_width": "ffn_hidden_size", "norm_eps": "layer_norm_epsilon"},
            outside={"embedding": "model.word_embeddings", "output_norm": "model.ln_f"},
            layer={
                "attention.output": "self_attention.dense",
                "second_norm": "ln_attn",
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
            aliases={
                "ln_mlp.weight": "attention_norm.weight",
                "ln_mlp.bias": "attention_norm.bias.weight",
            },
            bases=("transformer.",),
            layers=("h.",),
            read=_read,
            make=_make,
        ),
    },
)
