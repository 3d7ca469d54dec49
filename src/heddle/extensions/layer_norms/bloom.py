"""BLOOM: layer norms, also of the embedding, and ALiBi in place of positions.

BigScience 2022 (arXiv:2211.05100); `transformers`, `bloom`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.extensions.decoders.joined import made_of, of_groups
from heddle.extensions.layer_norms.activations import require
from heddle.extensions.layer_norms.placed import PlacedDecoder
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.family import Family
from heddle.models.feed_forward import MLP
from heddle.models.ops import Slopes
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.made import MadeTensor, Stored
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, _: int) -> PlacedDecoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    spec = replace(sizes.attention(read), bias=Slopes.of_heads(sizes.heads))
    mlp = MLP(shape.width, sizes.mlp_width, "gelu")
    layer = Layer(Attention(shape.width, spec, None), mlp, eps, centred=True)
    return PlacedDecoder(shape, (layer,) * shape.layers, eps, norms_embedding=True)


def _heads(config: Config) -> object:
    """Some folders have one key, some the other."""
    return config.get("n_head", config.get("num_attention_heads"))


def _read(config: Config) -> Config:
    """config.json has no context: `seq_length`, if it is there, was the one of the training."""
    require(config, "apply_residual_connection_post_layernorm", value=False)
    width = config.get("hidden_size", config.get("n_embed"))
    found: Config = {"context": config.get("seq_length", 2048), "width": width}
    found["heads"] = _heads(config)
    if isinstance(width, int):
        found["mlp_width"] = 4 * width
    return found


def _make(tensors: Mapping[str, Stored], config: Config) -> dict[str, MadeTensor]:
    heads = _heads(config)
    if not isinstance(heads, int) or heads < 1:
        return {}  # the size is refused by name when the model is built
    return made_of(tensors, "h.", {"self_attention.query_key_value": of_groups(heads, heads)})


FAMILY = Family(
    build=build,
    gguf={
        "bloom": GGUFNames(
            hyperparameters={"norm_eps": "attention.layer_norm_epsilon"},
            outside={"embedding_norm": "token_embd_norm"},
            fused=("attention.qkv",),
        )
    },
    hf={
        "bloom": FolderNames(
            hyperparameters={
                "layers": "n_layer",
                "norm_eps": "layer_norm_epsilon",
            },
            outside={
                "embedding": "model.word_embeddings",
                "embedding_norm": "model.word_embeddings_layernorm",
                "output_norm": "model.ln_f",
            },
            layer={
                "attention.output": "self_attention.dense",
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
            bases=("transformer.",),
            layers=("h.",),
            read=_read,
            make=_make,
        ),
    },
)
