"""Granite: as Llama, with factors on embeddings, scores, what each part adds, and logits.

Some have experts. In Granite 4's hybrids most layers have Mamba-2 in place of attention, and layers
with experts have a shared expert.

IBM 2024 (https://huggingface.co/ibm-granite); the factors are those of muP, Yang et al. 2022
(arXiv:2203.03466).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_recurrent, read_rotated, read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.mamba import mamba2
from heddle.models.positions import rope

if TYPE_CHECKING:
    from heddle.models.blocks import FeedForward, Mixer
    from heddle.weights.checkpoint import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="softmax_of_chosen")
    residual = read.number("residual_scale", 1.0)

    recurrent = read_recurrent(read, shape.layers, period=1)
    recurrence = mamba2(read, shape.width, eps) if any(recurrent) else None

    def layer(rotated: bool, is_recurrent: bool, mlp: FeedForward) -> Layer:
        mixer: Mixer = Attention(shape.width, sizes.attention(read), positions if rotated else None)
        if is_recurrent and recurrence is not None:
            mixer = recurrence
        return Layer(mixer, mlp, eps, residual_scale=residual)

    return Decoder(
        shape,
        tuple(map(layer, read_rotated(read, shape.layers), recurrent, mlps)),
        eps,
        embedding_scale=read.number("embedding_scale", 1.0),
        logit_scale=1 / read.number("logit_divisor", 1.0),
    )
