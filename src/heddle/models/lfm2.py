"""LFM2, dense or with experts: short convolutions, and in some layers attention that norms heads.

Liquid AI 2025 (arXiv:2511.23404; `transformers`, `models/lfm2` and `models/lfm2_moe`). Experts are
scored by sigmoids and chosen with a bias, after the first layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_recurrent, read_sizes
from heddle.models.blocks import Attention, QueryKeyNorm, hybrid_layers
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.positions import rope
from heddle.models.short_conv import ShortConv

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Hyperparameters

_BASE = 1_000_000.0


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    rotation = rope(read, shape.head_dim, context, _BASE)
    attention = Attention(shape.width, sizes.attention(read), rotation, QueryKeyNorm.HEADS, eps)
    taps = read.integer("state.taps", 3)
    if taps < 2:
        read.fail("state.taps", f"is {taps}; a convolution must see 2 positions or more")
    mixer = ShortConv(shape.width, taps)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid")
    recurrent = read_recurrent(read, shape.layers, period=1)
    layers = hybrid_layers(recurrent, mixer, attention, mlps, eps)
    return Decoder(shape, layers, eps)
