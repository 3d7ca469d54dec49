"""GPT-OSS: attention with sinks, windows in every second layer, experts with a clamped SwiGLU.

OpenAI 2025 (arXiv:2508.10925).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.decoders.clamped import check_clamped
from heddle.extensions.gpt_oss.experts import made_tensors
from heddle.models.base import read_sizes, read_windows
from heddle.models.blocks import Attention, Layer
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import STACKED_GATE_UP, FolderNames

if TYPE_CHECKING:
    from heddle.models.blocks import FeedForward
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        UnsupportedModelError: the activation has other constants than the published models.
    """
    read = hyperparameters
    check_clamped(read)
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    positions = rope(read, shape.head_dim, context)
    mlps = feed_forwards(read, sizes, "clamped", scoring="softmax_of_chosen")

    def layer(window: int, mlp: FeedForward) -> Layer:
        spec = sizes.attention(read, window)
        return Layer(Attention(shape.width, spec, positions, has_sinks=True), mlp, eps)

    windows = read_windows(read, shape.layers, period=2)
    return Decoder(shape, tuple(map(layer, windows, mlps)), eps)


FAMILY = Family(
    build=build,
    gguf={
        "gpt-oss": GGUFNames(
            values={"rope.whole_pairs": False},  # its config.json has `truncate` false
            layer={"attention.sinks": "attn_sinks", "mlp_norm": "post_attention_norm"},
        )
    },
    hf={
        "gpt_oss": FolderNames(
            layer=STACKED_GATE_UP
            | {"mlp.router": "mlp.router", "mlp.experts.down": "mlp.experts.down_proj"},
            tensors={"attention.sinks.weight": "self_attn.sinks"},
            make=made_tensors,
        )
    },
)
