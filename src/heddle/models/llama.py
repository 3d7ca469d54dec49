"""Llama, Qwen2, Mistral and Mixtral: norms before each part, SwiGLU.

Qwen2 and Mistral differ from Llama only by biases or windows. Mixtral has experts.

Touvron et al. 2023 (arXiv:2302.13971); Qwen2: Yang et al. 2024 (arXiv:2407.10671); Mistral: Jiang
et al. 2023 (arXiv:2310.06825); Mixtral: Jiang et al. 2024 (arXiv:2401.04088).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.ops import AttentionSpec
from heddle.models.positions import rope

if TYPE_CHECKING:
    from heddle.models.blocks import FeedForward
    from heddle.weights.checkpoint import Hyperparameters


def build(
    hyperparameters: Hyperparameters,
    context: int,
    *,
    norm_heads: bool = False,
    weights_normalised: bool = True,
    shared_gated: bool = False,
) -> Decoder:
    """The decoder with these hyperparameters.

    With `norm_heads`, each head of the queries and keys is normed. The other options are of layers
    with experts; see :func:`heddle.models.experts.feed_forwards`.
    """
    sizes = read_sizes(hyperparameters)
    shape, eps = sizes.shape, sizes.norm_eps
    scale = 1 / math.sqrt(shape.head_dim)
    positions = rope(hyperparameters, shape.head_dim, context)
    activation = hyperparameters.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(
        hyperparameters,
        sizes,
        activation,
        normalised=weights_normalised,
        shared_gated=shared_gated,
    )

    def layer(window: int, mlp: FeedForward) -> Layer:
        spec = AttentionSpec(sizes.heads, shape.kv_heads, shape.head_dim, scale, window)
        return Layer(Attention(shape.width, spec, positions, eps if norm_heads else None), mlp, eps)

    windows = read_windows(hyperparameters, shape.layers)
    return Decoder(shape, tuple(map(layer, windows, mlps)), eps)
