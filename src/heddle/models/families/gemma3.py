"""Gemma 3 (text): norms before and after each part, local and global attention layers, GeGLU.

Gemma Team 2025 (arXiv:2503.19786). The published norm weights are stored without an offset of 1;
the canonical ones include it. Most layers attend to a window of recent positions and have a rope
base of their own. Every sixth layer attends to the whole context.

EmbeddingGemma (Vera et al. 2025, arXiv:2509.20354) has the same layers. It is an encoder: a token
sees positions on both sides, half of the window on each. Dense layers follow its last norm.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.models.base import gemma_scale, read_sizes, read_windows
from heddle.models.blocks import Attention, Layer, NormPlacement, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.models.ops import AttentionSpec, RopeSpec
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import NORMS_AROUND, FolderNames

if TYPE_CHECKING:
    from heddle.models.base import Sizes
    from heddle.weights.hyperparameters import Hyperparameters

_LAYERS_OF_27B = 62


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters. Only global layers scale rope for long contexts."""
    read = hyperparameters
    sizes = _sizes(read)
    everywhere = rope(read, sizes.shape.head_dim, context, base=None)
    nearby = RopeSpec(
        everywhere.dim, read.number("rope.local_base", 10_000.0), everywhere.interleaved
    )
    spec = AttentionSpec(
        sizes.heads,
        sizes.shape.kv_heads,
        sizes.shape.head_dim,
        gemma_scale(read, sizes, _LAYERS_OF_27B),
        soft_cap=read.positive_or_zero("attention.score_cap", 0.0),
        causal=sizes.shape.causal,
        runs=1 if sizes.shape.causal else 0,  # tokens of a picture see one another
    )
    layers = tuple(
        _layer(sizes, nearby if window else everywhere, replace(spec, window=window))
        for window in _windows(read, sizes)
    )
    # As in llama.cpp. Hugging Face rounds it to the weights' type (25.298 to 25.25 in bf16).
    embedding_scale = math.sqrt(sizes.shape.width)
    return Decoder(
        sizes.shape,
        layers,
        sizes.norm_eps,
        embedding_scale=embedding_scale,
        logit_cap=read.positive_or_zero("logit_cap", 0.0),
        dense_widths=_dense_widths(read, sizes),
    )


def _sizes(hyperparameters: Hyperparameters) -> Sizes:
    sizes = read_sizes(hyperparameters)
    return replace(sizes, shape=replace(sizes.shape, causal=hyperparameters.flag("causal", True)))


def _windows(hyperparameters: Hyperparameters, sizes: Sizes) -> list[int]:
    """Positions that each layer sees: up to the token, or on either side of it; 0 for all."""
    windows = read_windows(hyperparameters, sizes.shape.layers, period=6)
    if sizes.shape.causal:
        return windows
    return [window // 2 + 1 if window else 0 for window in windows]


def _dense_widths(hyperparameters: Hyperparameters, sizes: Sizes) -> tuple[int, ...]:
    """Widths of the results of the dense layers.

    Raises:
        UnsupportedModelError: embeddings would have another width, or a layer has an activation.
    """
    read, names = hyperparameters, ("dense.0.width", "dense.1.width")
    if sizes.shape.causal or read.get(names[0]) is None:
        return ()
    widths = tuple(read.integer(name) for name in names if read.get(name) is not None)
    if widths[-1] != sizes.shape.width or read.get("dense.activations"):
        label = read.label(names[len(widths) - 1])
        raise UnsupportedModelError(
            f"{label} {widths[-1]} is not supported: the last dense layer must have the model's"
            f" width, {sizes.shape.width}, and none an activation",
            param=label,
        )
    return widths


def _layer(sizes: Sizes, rope: RopeSpec, spec: AttentionSpec) -> Layer:
    shape, eps = sizes.shape, sizes.norm_eps
    attention = Attention(shape.width, spec, rope, QueryKeyNorm.HEADS, eps)
    mlp = GatedMLP(shape.width, sizes.mlp_width, "gelu")
    return Layer(attention, mlp, eps, NormPlacement.AROUND)


FAMILY = Family(
    build=build,
    gguf={
        "gemma3": GGUFNames(),
        "gemma-embedding": GGUFNames(values={"causal": False}),
    },
    hf={
        "gemma3_text": FolderNames(
            layer=NORMS_AROUND, norms_without_one=True, with_images=("gemma3",)
        )
    },
)
