"""Llama and Mixtral: norms before each part, SwiGLU. Mixtral has experts.

Qwen2, Mistral, Ministral 3, Phi-3 and Seed-OSS differ from Llama only by biases, windows and rope.

Touvron et al. 2023 (arXiv:2302.13971); Qwen2: Yang et al. 2024 (arXiv:2407.10671); Mistral: Jiang
et al. 2023 (arXiv:2310.06825); Mixtral: Jiang et al. 2024 (arXiv:2401.04088); Phi-3: Abdin et al.
2024 (arXiv:2404.14219).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer, QueryKeyNorm
from heddle.models.decoder import Decoder, PredictionHead
from heddle.models.experts import feed_forwards
from heddle.models.positions import rope, temperature

if TYPE_CHECKING:
    from heddle.models.blocks import FeedForward
    from heddle.weights.checkpoint import Hyperparameters


def build(
    hyperparameters: Hyperparameters,
    context: int,
    *,
    norm: QueryKeyNorm = QueryKeyNorm.NONE,
    scoring: str = "softmax",
    weights_normalised: bool = True,
    shared_gated: bool = False,
) -> Decoder:
    """The decoder with these hyperparameters.

    `norm` says what is normed of queries and keys. The other options are of layers with experts;
    see :func:`heddle.models.experts.feed_forwards`.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions, growth = rope(read, shape.head_dim, context), temperature(read, shape.head_dim)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(
        read,
        sizes,
        activation,
        scoring=scoring,
        normalised=weights_normalised,
        shared_gated=shared_gated,
    )

    def layer(window: int, mlp: FeedForward) -> Layer:
        spec = sizes.attention(read, window)
        return Layer(Attention(shape.width, spec, positions, norm, eps, growth), mlp, eps)

    windows = read_windows(read, shape.layers)
    layers = tuple(map(layer, windows, mlps))
    has_head = read.count("prediction_layers")
    head = PredictionHead.of(shape, layers[-1], eps) if has_head else None
    return Decoder(shape, layers, eps, head=head)
