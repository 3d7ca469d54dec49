"""EXAONE 4: norms after each part only, and a norm of each query and key head.

In the larger models, three of four layers attend to a window, and only these have positions.

LG AI Research 2025 (arXiv:2507.11407).
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from heddle.extensions.decoders.windows import PERIOD, windows_and_positions
from heddle.extensions.olmo.olmo2 import FOLDER
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer, NormPlacement, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.models.ops import RopeSpec
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("silu",), "silu"))

    def layer(window: int, positions: RopeSpec | None) -> Layer:
        spec = sizes.attention(read, window)
        attention = Attention(shape.width, spec, positions, QueryKeyNorm.HEADS, eps)
        return Layer(attention, mlp, eps, NormPlacement.AFTER)

    layers = starmap(layer, windows_and_positions(read, shape, context))
    return Decoder(shape, tuple(layers), eps)


FAMILY = Family(
    build=build,
    gguf={"exaone4": GGUFNames()},
    hf={"exaone4": FolderNames(layer=FOLDER, window_period=PERIOD)},
)
