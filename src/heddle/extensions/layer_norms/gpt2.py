"""GPT-2: layer norms, learned positions, a feed-forward layer without gates.

Radford et al. 2019 ("Language Models are Unsupervised Multitask Learners"); `transformers`, `gpt2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.decoders.joined import made_of, thirds, transposed
from heddle.extensions.layer_norms.activations import SUPPORTED, activation_of, require
from heddle.extensions.layer_norms.placed import PlacedDecoder
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.family import Family
from heddle.models.feed_forward import MLP
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.extensions.decoders.joined import Cut
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, _: int) -> PlacedDecoder:
    """The decoder with these hyperparameters. Its table of positions bounds its context."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    mlp = MLP(shape.width, sizes.mlp_width, read.choice("activation", SUPPORTED, "gelu"))
    layer = Layer(Attention(shape.width, sizes.attention(read), None), mlp, eps, centred=True)
    layers = (layer,) * shape.layers
    return PlacedDecoder(shape, layers, eps, first_position=read.count("first_position"))


def _read(config: Config) -> Config:
    require(config, "scale_attn_weights", value=True)
    require(config, "scale_attn_by_inverse_layer_idx", value=False)
    require(config, "add_cross_attention", value=False)
    found = activation_of(config, "activation_function", "gelu_new")
    width = config.get("n_embd")
    if config.get("n_inner") is None and isinstance(width, int):
        found["mlp_width"] = 4 * width
    return found


def _make(tensors: Mapping[str, Stored], _: Config) -> dict[str, MadeTensor]:
    cuts: dict[str, Mapping[str, Cut]] = {
        "attn.c_attn": thirds(),
        "attn.c_proj": {"attention.output": transposed},
        "mlp.c_fc": {"mlp.up": transposed},
        "mlp.c_proj": {"mlp.down": transposed},
    }
    return made_of(tensors, "h.", cuts)


FAMILY = Family(
    build=build,
    gguf={
        "gpt2": GGUFNames(
            hyperparameters={"norm_eps": "attention.layer_norm_epsilon"},
            outside={"positions": "position_embd"},
            fused=("attention.qkv",),
        )
    },
    hf={
        "gpt2": FolderNames(
            hyperparameters={
                "layers": "n_layer",
                "width": "n_embd",
                "mlp_width": "n_inner",
                "heads": "n_head",
                "context": "n_positions",
                "norm_eps": "layer_norm_epsilon",
            },
            outside={
                "embedding": "model.wte",
                "positions": "model.wpe",
                "output_norm": "model.ln_f",
            },
            layer={"attention_norm": "ln_1", "mlp_norm": "ln_2"},
            bases=("transformer.",),
            layers=("h.",),
            read=_read,
            make=_make,
        ),
    },
)
