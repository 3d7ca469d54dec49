"""SmolLM3: as Llama, but every fourth layer has no positions.

Hugging Face 2025 (https://huggingface.co/blog/smollm3); layers without positions: Yang et al. 2025
(arXiv:2501.18795).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.decoders.rotated import read_rotated
from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("silu",), "silu"))

    def layer(window: int, rotated: bool) -> Layer:
        spec = sizes.attention(read, window)
        return Layer(Attention(shape.width, spec, positions if rotated else None), mlp, eps)

    windows = read_windows(read, shape.layers)
    layers = map(layer, windows, read_rotated(read, shape.layers, period=4))
    return Decoder(shape, tuple(layers), eps)


FAMILY = Family(
    build=build, gguf={"smollm3": GGUFNames(values=INTERLEAVED)}, hf={"smollm3": FolderNames()}
)
