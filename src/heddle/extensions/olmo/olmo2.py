"""OLMo 2 and 3: norms after each part only, and norms of all queries and of all keys together.

OLMo Team 2025 (arXiv:2501.00656); OLMo 3: Olmo Team 2025 (arXiv:2512.13961). In OLMo 3, three of
four layers attend to a window of recent positions. Rope is scaled in the other layers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer, NormPlacement, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.ops import RopeSpec
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters. Without a window it is OLMo 2."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    everywhere = rope(read, shape.head_dim, context)
    nearby = RopeSpec(
        everywhere.dim, read.number("rope.local_base", everywhere.base), everywhere.interleaved
    )
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("silu",), "silu"))

    def layer(window: int) -> Layer:
        spec = sizes.attention(read, window)
        positions = nearby if window else everywhere
        attention = Attention(shape.width, spec, positions, QueryKeyNorm.WHOLE, eps)
        return Layer(attention, mlp, eps, NormPlacement.AFTER)

    period = 1 if read.get("window") is None else 4
    return Decoder(shape, tuple(map(layer, read_windows(read, shape.layers, period))), eps)


FOLDER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
FAMILY = Family(
    build=build,
    gguf={"olmo2": GGUFNames()},
    hf={
        "olmo2": FolderNames(layer=FOLDER),
        "olmo3": FolderNames(layer=FOLDER, window_period=4),
    },
)
