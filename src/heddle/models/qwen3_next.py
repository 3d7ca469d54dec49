"""Qwen3-Next and Qwen3.5: gated delta nets, and every few layers gated attention.

Qwen Team 2025 (`transformers`, `models/qwen3_next` and `models/qwen3_5`; llama.cpp, `qwen3next.cpp`
and `qwen35.cpp`). Attention norms heads, rotates a part of them, and gates its result. Layers are
dense, or have experts and a gated shared expert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_recurrent, read_sizes
from heddle.models.blocks import Attention, Layer, QueryKeyNorm, hybrid_layers
from heddle.models.decoder import Decoder, PredictionHead
from heddle.models.delta_net import gated_delta_net
from heddle.models.experts import feed_forwards
from heddle.models.positions import rope

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    attention = Attention(
        shape.width,
        sizes.attention(read),
        rope(read, shape.head_dim, context),
        QueryKeyNorm.HEADS,
        eps,
        gated=True,
    )
    mixer = gated_delta_net(read, shape.width, eps)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, shared_gated=True)
    recurrent = read_recurrent(read, shape.layers, period=4)
    layers = hybrid_layers(recurrent, mixer, attention, mlps, eps)
    has_head = read.count("prediction_layers")
    head = PredictionHead.of(shape, Layer(attention, mlps[-1], eps), eps) if has_head else None
    return Decoder(shape, layers, eps, head=head)
