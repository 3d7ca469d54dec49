"""DeepSeek-V2 and V3, GLM-4.7-Flash: latent attention, and experts after the first layers.

DeepSeek-V2 (arXiv:2405.04434) scores experts by a softmax, V3 (arXiv:2412.19437) by sigmoids with a
bias. GLM-4.7-Flash is as V3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import Sizes
from heddle.models.blocks import Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.latent import latent_attention
from heddle.step import ModelShape

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    width, eps = read.integer("width"), read.number("norm_eps")
    attention = latent_attention(read, width, context)
    shape = ModelShape(
        layers=read.integer("layers"),
        kv_heads=1,
        head_dim=attention.spec.rank + attention.spec.rope_dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=width,
    )
    sizes = Sizes(shape, read.integer("mlp_width"), attention.spec.heads, eps)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, normalised=False)
    return Decoder(shape, tuple(Layer(attention, mlp, eps) for mlp in mlps), eps)
