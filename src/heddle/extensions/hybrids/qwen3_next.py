"""Qwen3-Next and Qwen3.5: gated delta nets, and every few layers gated attention.

Qwen Team 2025 (`transformers`, `models/qwen3_next` and `models/qwen3_5`; llama.cpp, `qwen3next.cpp`
and `qwen35.cpp`). Attention norms heads, rotates a part of them, and gates its result. Layers are
dense, or have experts and a gated shared expert.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.extensions.decoders.recurrent import read_recurrent
from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.delta_net import gated_delta_net
from heddle.extensions.hybrids.gated_attention import GatedAttention
from heddle.extensions.hybrids.layers import hybrid_layers
from heddle.models.base import read_sizes
from heddle.models.blocks import Layer, QueryKeyNorm
from heddle.models.decoder import Decoder, PredictionHead
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.models.positions import rope
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import STACKED_GATE_UP, FolderNames

if TYPE_CHECKING:
    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
    """
    read = hyperparameters
    sizes = read_sizes(read)
    shape, eps = sizes.shape, sizes.norm_eps
    attention = GatedAttention(
        shape.width,
        sizes.attention(read),
        rope(read, shape.head_dim, context),
        QueryKeyNorm.HEADS,
        eps,
    )
    mixer = gated_delta_net(read, shape.width, eps)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, shared_gated=True)
    recurrent = read_recurrent(read, shape.layers, period=4)
    layers = hybrid_layers(recurrent, mixer, attention, mlps, eps)
    has_head = read.count("prediction_layers")
    head = PredictionHead.of(shape, Layer(attention, mlps[-1], eps), eps) if has_head else None
    return Decoder(shape, layers, eps, head=head)


_DELTA_NET = {
    "mixer.qkvz": "linear_attn.in_proj_qkvz",
    "mixer.qkv": "linear_attn.in_proj_qkv",
    "mixer.z": "linear_attn.in_proj_z",
    "mixer.ba": "linear_attn.in_proj_ba",
    "mixer.beta": "linear_attn.in_proj_b",
    "mixer.alpha": "linear_attn.in_proj_a",
    "mixer.conv": "linear_attn.conv1d",
    "mixer.norm": "linear_attn.norm",
    "mixer.output": "linear_attn.out_proj",
}
_STATE = {
    "attention_period": "full_attention_interval",
    "state.heads": "linear_num_value_heads",
    "state.groups": "linear_num_key_heads",
    "state.key_dim": "linear_key_head_dim",
    "state.value_dim": "linear_value_head_dim",
    "state.taps": "linear_conv_kernel_dim",
}
_FOLDER = FolderNames(
    hyperparameters=_STATE,
    values={"prediction_layers": 1},  # Qwen3-Next's config.json does not name its head
    layer=_DELTA_NET,
    tensors={
        "mixer.decay_rates.weight": "linear_attn.A_log",
        "mixer.step_bias.weight": "linear_attn.dt_bias",
    },
    head_layers="mtp.layers.",
    head={
        "prediction.projection": "mtp.fc",
        "prediction.embedding_norm": "mtp.pre_fc_norm_embedding",
        "prediction.state_norm": "mtp.pre_fc_norm_hidden",
        "prediction.output_norm": "mtp.norm",
    },
    norms_without_one=True,
    rotated_share=0.25,
)
_FOLDER_35 = replace(
    _FOLDER,
    hyperparameters=_STATE | {"prediction_layers": "mtp_num_hidden_layers"},
    values={**_FOLDER.values, "rope.sections_alternate": True},
    with_images=("qwen3_5",),
)
_GGUF = GGUFNames(
    layer={
        **names.GGUF_MIXER,
        "mlp_norm": "post_attention_norm",
        "attention.qkv": "",  # such files have it apart
        "mixer.qkv": "attn_qkv",
        "mixer.qkvz": "ssm_in",
        "mixer.z": "attn_gate",
        "mixer.ba": "ssm_ba",
        "mixer.beta": "ssm_beta",
        "mixer.alpha": "ssm_alpha",
    },
    tensors=names.GGUF_VECTORS,
)
_GGUF_35 = replace(_GGUF, values={"state.tiled": True, "rope.sections_alternate": True})
FAMILY = Family(
    build=build,
    gguf={"qwen3next": _GGUF, "qwen35": _GGUF_35, "qwen35moe": _GGUF_35},
    hf={
        "qwen3_next": _FOLDER,
        "qwen3_5_text": _FOLDER_35,
        "qwen3_5_moe_text": replace(
            _FOLDER_35,
            layer=_DELTA_NET | STACKED_GATE_UP,
            tensors={**_FOLDER.tensors, "mlp.experts.down.weight": "mlp.experts.down_proj"},
            # Experts of the head are stored one by one, those of layers together.
            aliases={
                f"mlp.experts.*.{part}_proj.weight": f"mlp.experts.{part}.weight"
                for part in ("gate", "up", "down")
            },
            with_images=("qwen3_5_moe",),
        ),
    },
)
