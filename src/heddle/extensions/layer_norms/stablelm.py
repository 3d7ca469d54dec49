"""StableLM 2: layer norms, gates, rotation of a part of each head.

Bellagente et al. 2024 (arXiv:2402.17834).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    attention = Attention(shape.width, sizes.attention(read), rope(read, shape.head_dim, context))
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("silu",), "silu"))
    layer = Layer(attention, mlp, eps, centred=True, parallel=read.flag("parallel", False))
    return Decoder(shape, (layer,) * shape.layers, eps)


def refuse_norms(config: Config, key: str) -> Config:
    """No hyperparameters.

    Raises:
        UnsupportedModelError: queries and keys have layer norms.
    """
    if config.get(key):
        raise UnsupportedModelError(
            f"config.json: {key} {config[key]!r} is not supported: layer norms of queries and keys",
            param=key,
        )
    return {}


FAMILY = Family(
    build=build,
    gguf={
        "stablelm": GGUFNames(
            hyperparameters={
                "norm_eps": "attention.layer_norm_epsilon",
                "parallel": "use_parallel_residual",
            }
        ),
    },
    hf={
        "stablelm": FolderNames(
            hyperparameters={"norm_eps": "layer_norm_eps", "parallel": "use_parallel_residual"},
            rotated_share=0.25,
            read=lambda config: refuse_norms(config, "qk_layernorm"),
        ),
    },
)
