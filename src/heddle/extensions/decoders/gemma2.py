"""Gemma 2: norms before and after each part, GeGLU, soft caps, every second layer with a window.

Gemma Team 2024 (arXiv:2408.00118). Scores of attention and logits have soft caps. The canonical
norm weights include the offset of 1, as in Gemma 3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.models.base import gemma_scale, read_sizes, read_windows
from heddle.models.blocks import Attention, Layer, NormPlacement
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.ops import AttentionSpec
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import NORMS_AROUND, FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters

_LAYERS_OF_27B = 46


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters. The default caps are those of `transformers`."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    scale = gemma_scale(read, sizes, _LAYERS_OF_27B)
    cap = read.positive_or_zero("attention.score_cap", 50.0)
    activation = read.choice("activation", ("gelu",), "gelu")
    mlp = GatedMLP(shape.width, sizes.mlp_width, activation)

    def layer(window: int) -> Layer:
        heads = (sizes.heads, shape.kv_heads, shape.head_dim)
        spec = AttentionSpec(*heads, scale, window, soft_cap=cap)
        return Layer(Attention(shape.width, spec, positions), mlp, eps, NormPlacement.AROUND)

    windows = read_windows(read, shape.layers, period=2)
    return Decoder(
        shape,
        tuple(map(layer, windows)),
        eps,
        embedding_scale=math.sqrt(shape.width),
        logit_cap=read.positive_or_zero("logit_cap", 30.0),
    )


FAMILY = Family(
    build=build,
    gguf={"gemma2": GGUFNames()},
    hf={"gemma2": FolderNames(layer=NORMS_AROUND, norms_without_one=True, window_period=2)},
)
