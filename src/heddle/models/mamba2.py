"""Mamba-2 alone: layers without attention and without feed-forward parts.

Dao & Gu 2024 (arXiv:2405.21060; `transformers`, `models/mamba2`; llama.cpp, `mamba2.cpp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.blocks import Layer
from heddle.models.decoder import Decoder
from heddle.models.mamba import mamba2
from heddle.state import NO_SHAPE
from heddle.step import ModelShape

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read = hyperparameters
    shape = ModelShape(
        layers=read.integer("layers"),
        kv_heads=NO_SHAPE.heads,
        head_dim=NO_SHAPE.dim,
        vocabulary=read.integer("vocabulary"),
        context=read.integer("context"),
        width=read.integer("width"),
    )
    eps = read.number("norm_eps")
    layer = Layer(mamba2(read, shape.width, eps), None, eps)
    return Decoder(shape, (layer,) * shape.layers, eps)
