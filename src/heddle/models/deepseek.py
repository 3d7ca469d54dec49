"""DeepSeek-V2 and V3, GLM-4.7-Flash: latent attention, and experts after the first layers.

DeepSeek-V2 (arXiv:2405.04434) scores experts by a softmax, V3 (arXiv:2412.19437) by sigmoids with a
bias. GLM-4.7-Flash is as V3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.blocks import Layer
from heddle.models.decoder import Decoder, PredictionHead
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
    eps = sizes.norm_eps
    layers = tuple(Layer(attention, mlp, eps) for mlp in mlps)
    has_head = read.count("prediction_layers")
    head = PredictionHead.of(sizes.shape, layers[-1], eps) if has_head else None
    return Decoder(sizes.shape, layers, eps, head=head)
