"""Gemma 3 (text): norms before and after each part, local and global attention layers, GeGLU.

Gemma Team 2025 (arXiv:2503.19786). The published norm weights are stored without an offset of 1;
the canonical ones include it. Most layers attend to a window of recent positions and have a rope
base of their own. Every sixth layer attends to the whole context.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, GatedMLP, Layer, NormPlacement, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.ops import AttentionSpec, RopeSpec
from heddle.models.positions import rope

if TYPE_CHECKING:
    from heddle.models.base import Sizes
    from heddle.weights.checkpoint import Hyperparameters

_LAYERS_OF_27B = 62


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters. Only global layers scale rope for long contexts.

    Raises:
        UnsupportedModelError: the file caps logits; Gemma 3 does not.
    """
    read = hyperparameters
    cap = read.get("logit_cap", 0.0)
    if not isinstance(cap, int | float) or cap != 0.0:
        label = read.label("logit_cap")
        raise UnsupportedModelError(
            f"{label} {cap!r} is not supported: Gemma 3 does not cap logits", param=label
        )
    sizes = read_sizes(read)
    everywhere = rope(read, sizes.shape.head_dim, context, base=None)
    nearby = RopeSpec(
        everywhere.dim, read.number("rope.local_base", 10_000.0), everywhere.interleaved
    )
    scale = _attention_scale(read, sizes)
    layers = tuple(
        _layer(sizes, nearby if window else everywhere, scale, window)
        for window in read_windows(read, sizes.shape.layers, period=6)
    )
    # As in llama.cpp. Hugging Face rounds it to the weights' type (25.298 to 25.25 in bf16).
    embedding_scale = math.sqrt(sizes.shape.width)
    return Decoder(sizes.shape, layers, sizes.norm_eps, embedding_scale=embedding_scale)


def _layer(sizes: Sizes, rope: RopeSpec, scale: float, window: int) -> Layer:
    shape, eps = sizes.shape, sizes.norm_eps
    spec = AttentionSpec(sizes.heads, shape.kv_heads, shape.head_dim, scale, window)
    attention = Attention(shape.width, spec, rope, QueryKeyNorm.HEADS, eps)
    mlp = GatedMLP(shape.width, sizes.mlp_width, "gelu")
    return Layer(attention, mlp, eps, NormPlacement.AROUND)


def _attention_scale(hyperparameters: Hyperparameters, sizes: Sizes) -> float:
    """1 / sqrt(head width); in the 27B model 1 / sqrt(model width / number of heads).

    GGUF has no key for this. llama.cpp too recognises the 27B model by its number of layers.
    """
    if hyperparameters.get("attention.scale_dim") is not None:
        return 1 / math.sqrt(hyperparameters.number("attention.scale_dim"))
    if sizes.shape.layers == _LAYERS_OF_27B:
        return 1 / math.sqrt(sizes.shape.width / sizes.heads)
    return 1 / math.sqrt(sizes.shape.head_dim)
