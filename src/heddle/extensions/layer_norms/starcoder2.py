"""StarCoder2: layer norms, biases everywhere, a feed-forward layer without gates.

Lozhkov et al. 2024 (arXiv:2402.19173).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import MLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters. GGUF files do not name the window (llama.cpp)."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    mlp = MLP(shape.width, sizes.mlp_width, read.choice("activation", ("gelu",), "gelu"))

    def layer(window: int) -> Layer:
        attention = Attention(shape.width, sizes.attention(read, window), positions)
        return Layer(attention, mlp, eps, centred=True)

    return Decoder(shape, tuple(map(layer, read_windows(read, shape.layers))), eps)


FAMILY = Family(
    build=build,
    gguf={
        "starcoder2": GGUFNames(hyperparameters={"norm_eps": "attention.layer_norm_epsilon"}),
    },
    hf={
        "starcoder2": FolderNames(
            hyperparameters={"norm_eps": "norm_epsilon"},
            layer={"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"},
        ),
    },
)
