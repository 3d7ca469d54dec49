"""DeepSeek-V2 and V3, GLM-4.7-Flash: latent attention, and experts after the first layers.

DeepSeek-V2 (arXiv:2405.04434) scores experts by a softmax, V3 (arXiv:2412.19437) by sigmoids with a
bias. GLM-4.7-Flash is as V3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.deepseek import config
from heddle.extensions.deepseek.latent import latent_attention, latent_model_sizes
from heddle.extensions.deepseek.names import FOLDER_LATENTS, GGUF_LATENTS, read_deepseek
from heddle.models.blocks import Layer
from heddle.models.decoder import Decoder, PredictionHead
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.weights.gguf.names import INTERLEAVED, GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


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


_FOLDER = FolderNames(layer=FOLDER_LATENTS, read=config.sizes)
FAMILY = Family(
    build=build,
    gguf={"deepseek2": GGUFNames(values=INTERLEAVED, layer=GGUF_LATENTS, read=read_deepseek)},
    hf={"deepseek_v2": _FOLDER, "deepseek_v3": _FOLDER, "glm4_moe_lite": _FOLDER},
)
