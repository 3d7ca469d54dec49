"""LFM2, dense or with experts: short convolutions, and in some layers attention that norms heads.

Liquid AI 2025 (arXiv:2511.23404; `transformers`, `models/lfm2` and `models/lfm2_moe`). Experts are
scored by sigmoids and chosen with a bias, after the first layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.decoders.recurrent import read_recurrent
from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import lfm2 as config
from heddle.extensions.hybrids.layers import hybrid_layers
from heddle.extensions.hybrids.short_conv import ShortConv
from heddle.models.base import read_sizes
from heddle.models.blocks import Attention, QueryKeyNorm
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters

_BASE = 1_000_000.0


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    rotation = rope(read, shape.head_dim, context, _BASE)
    attention = Attention(shape.width, sizes.attention(read), rotation, QueryKeyNorm.HEADS, eps)
    taps = read.integer("state.taps", 3)
    if taps < 2:
        read.fail("state.taps", f"is {taps}; a convolution must see 2 positions or more")
    mixer = ShortConv(shape.width, taps)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid")
    recurrent = read_recurrent(read, shape.layers, period=1)
    layers = hybrid_layers(recurrent, mixer, attention, mlps, eps)
    return Decoder(shape, layers, eps)


_GGUF = GGUFNames(
    hyperparameters={"state.taps": "shortconv.l_cache"},
    outside={"output_norm": "token_embd_norm"},
    layer={
        "mixer.inputs": "shortconv.in_proj",
        "mixer.conv": "shortconv.conv",
        "mixer.output": "shortconv.out_proj",
    },
    read=names.recurrent_without_heads,
)
_FOLDER = FolderNames(
    hyperparameters={"norm_eps": "norm_eps", "state.taps": "conv_L_cache"},
    outside={"output_norm": "model.embedding_norm"},
    layer={
        "attention_norm": "operator_norm",
        "attention.output": "self_attn.out_proj",
        "attention.q_norm": "self_attn.q_layernorm",
        "attention.k_norm": "self_attn.k_layernorm",
        "mixer.inputs": "conv.in_proj",
        "mixer.conv": "conv.conv",
        "mixer.output": "conv.out_proj",
        "mlp_norm": "ffn_norm",
        "mlp.gate": "feed_forward.w1",
        "mlp.up": "feed_forward.w3",
        "mlp.down": "feed_forward.w2",
        "mlp.router": "feed_forward.gate",
        "mlp.experts.gate": "feed_forward.experts.*.w1",
        "mlp.experts.up": "feed_forward.experts.*.w3",
        "mlp.experts.down": "feed_forward.experts.*.w2",
    },
    tensors={"mlp.selection_bias.weight": "feed_forward.expert_bias"},
    with_images=("lfm2_vl",),
    read=config.sizes,
)
FAMILY = Family(
    build=build,
    gguf={"lfm2": _GGUF, "lfm2moe": _GGUF},
    hf={"lfm2": _FOLDER, "lfm2_moe": _FOLDER},
)
