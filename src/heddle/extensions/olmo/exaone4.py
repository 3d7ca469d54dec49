"""EXAONE 4: norms after each part only, and a norm of each query and key head.

In the larger models, three of four layers attend to a window, and only these have positions.

LG AI Research 2025 (arXiv:2507.11407).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.olmo.olmo2 import FOLDER
from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer, NormPlacement, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters

_PERIOD = 4


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters. Without a window all layers have positions."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("silu",), "silu"))
    has_windows = read.get("window") is not None

    def layer(window: int) -> Layer:
        own = positions if window or not has_windows else None
        spec = sizes.attention(read, window)
        attention = Attention(shape.width, spec, own, QueryKeyNorm.HEADS, eps)
        return Layer(attention, mlp, eps, NormPlacement.AFTER)

    windows = read_windows(read, shape.layers, _PERIOD) if has_windows else [0] * shape.layers
    return Decoder(shape, tuple(map(layer, windows)), eps)


FAMILY = Family(
    build=build,
    gguf={"exaone4": GGUFNames()},
    hf={"exaone4": FolderNames(layer=FOLDER, window_period=_PERIOD)},
)
