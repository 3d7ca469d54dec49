"""Kimi Linear: Kimi delta attention, and every few layers latent attention without positions.

Kimi Team 2025 (arXiv:2510.26692; `transformers`, `models/kimi_linear`; llama.cpp,
`kimi-linear.cpp`). Experts are as in DeepSeek-V3, after the first layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_recurrent
from heddle.models.blocks import hybrid_layers
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.kimi_delta import kimi_delta_attention
from heddle.models.latent import latent_attention, latent_model_sizes

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: executors cannot store latents of this size.
    """
    read = hyperparameters
    attention = latent_attention(read, context, rotates=False)
    sizes = latent_model_sizes(read, attention)
    shape, eps = sizes.shape, sizes.norm_eps
    mixer = kimi_delta_attention(read, shape.width, eps)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid")
    recurrent = read_recurrent(read, shape.layers, period=4)
    layers = hybrid_layers(recurrent, mixer, attention, mlps, eps)
    return Decoder(shape, layers, eps)
