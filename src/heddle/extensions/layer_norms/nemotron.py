"""Nemotron 3 8B, Nemotron 4 and Minitron: layer norms, squared ReLU, rotation of half of each head.

Folders store the norms' weights without their offset of 1. Muralidharan et al. 2024
(arXiv:2407.14679); `transformers`, `nemotron`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import MLP
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters."""
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    attention = Attention(shape.width, sizes.attention(read), rope(read, shape.head_dim, context))
    activation = read.choice("activation", ("squared_relu",), "squared_relu")
    layer = Layer(attention, MLP(shape.width, sizes.mlp_width, activation), eps, centred=True)
    return Decoder(shape, (layer,) * shape.layers, eps)


FAMILY = Family(
    build=build,
    gguf={
        "nemotron": GGUFNames(hyperparameters={"norm_eps": "attention.layer_norm_epsilon"}),
    },
    hf={
        "nemotron": FolderNames(
            hyperparameters={"norm_eps": "norm_eps"}, norms_without_one=True, rotated_share=0.5
        ),
    },
)
