"""Gemma 1: as Llama, with GeGLU and scaled embeddings.

Gemma Team 2024 (arXiv:2403.08295). The canonical norm weights include the offset of 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
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
    mlp = GatedMLP(shape.width, sizes.mlp_width, read.choice("activation", ("gelu",), "gelu"))
    layers = (Layer(attention, mlp, eps),) * shape.layers
    return Decoder(shape, layers, eps, embedding_scale=math.sqrt(shape.width))


FAMILY = Family(
    build=build,
    gguf={"gemma": GGUFNames()},
    # The first folders say "gelu" and mean the form with tanh (transformers, GemmaConfig).
    hf={"gemma": FolderNames(norms_without_one=True, activations={"gelu": "gelu"})},
)
