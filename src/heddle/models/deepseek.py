"""DeepSeek-V2 and V3, GLM-4.7-Flash: latent attention, and experts after the first layers.

DeepSeek-V2 (arXiv:2405.04434) scores experts by a softmax, V3 (arXiv:2412.19437) by sigmoids with a
bias. GLM-4.7-Flash is as V3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.blocks import Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.latent import latent_attention, latent_model_sizes

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    attention = latent_attention(read, context)
    sizes = latent_model_sizes(read, attention)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, normalised=False)
    layers = (Layer(attention, mlp, sizes.norm_eps) for mlp in mlps)
    return Decoder(sizes.shape, tuple(layers), sizes.norm_eps)
