"""Nemotron-H: each layer is Mamba-2, attention without positions, or a feed-forward part.

NVIDIA 2025 (arXiv:2504.03624; `transformers`, `models/nemotron_h`; llama.cpp, `nemotron-h.cpp`).
Feed-forward parts have squared ReLUs and no gates. Nemotron 3 has experts, which are chosen as in
DeepSeek-V3, and a shared expert. In its larger models, experts read a latent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_parts, read_sizes
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.mamba import mamba2

if TYPE_CHECKING:
    from heddle.models.blocks import FeedForward, Mixer
    from heddle.weights.checkpoint import Hyperparameters

_ACTIVATION = "squared_relu"


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: a hyperparameter has a value that is not supported.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    mixers: dict[str, Mixer] = {
        "attention": Attention(shape.width, sizes.attention(read), None),
        "recurrence": mamba2(read, shape.width, eps),
    }
    activation = read.choice("activation", (_ACTIVATION,), _ACTIVATION)
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid")

    def layer(part: str, mlp: FeedForward) -> Layer:
        return Layer(None, mlp, eps) if part == "mlp" else Layer(mixers[part], None, eps)

    return Decoder(shape, tuple(map(layer, read_parts(read, shape.layers), mlps)), eps)
