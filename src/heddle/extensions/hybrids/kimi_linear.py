"""Kimi Linear: Kimi delta attention, and every few layers latent attention without positions.

Kimi Team 2025 (arXiv:2510.26692; `transformers`, `models/kimi_linear`; llama.cpp,
`kimi-linear.cpp`). Experts are as in DeepSeek-V3, after the first layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.decoders.recurrent import read_recurrent
from heddle.extensions.deepseek.latent import latent_attention, latent_model_sizes
from heddle.extensions.deepseek.names import FOLDER_LATENTS, GGUF_LATENTS, read_heads
from heddle.extensions.hybrids import names
from heddle.extensions.hybrids.config import kimi_linear as config
from heddle.extensions.hybrids.kimi_delta import kimi_delta_attention
from heddle.extensions.hybrids.layers import hybrid_layers
from heddle.models.decoder import Decoder
from heddle.models.experts import feed_forwards
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.hyperparameters import Hyperparameters


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: executors cannot store latents of this size.
    """
    read = hyperparameters
    attention = latent_attention(read, context, rotates=False)
    sizes = latent_model_sizes(read, attention)
    shape, eps = sizes.shape, sizes.norm_eps
    mixer = kimi_delta_attention(read, shape.width, eps)
    activation = read.choice("activation", ("silu",), "silu")
    mlps = feed_forwards(read, sizes, activation, scoring="sigmoid")
    recurrent = read_recurrent(read, shape.layers, period=4)
    layers = hybrid_layers(recurrent, mixer, attention, mlps, eps)
    return Decoder(shape, layers, eps)


_GGUF = {
    **{f"attention.{part}_conv": f"ssm_conv1d_{part}" for part in ("q", "k", "v")},
    "attention.beta": "ssm_beta",
    "attention.alpha_in": "ssm_f_a",
    "attention.alpha_out": "ssm_f_b",
    "attention.z_in": "ssm_g_a",
    "attention.z_out": "ssm_g_b",
    "attention.norm": "ssm_norm",
}
_FOLDER = {
    **{f"attention.{part}_conv": f"self_attn.{part}_conv1d" for part in ("q", "k", "v")},
    "attention.beta": "self_attn.b_proj",
    "attention.alpha_in": "self_attn.f_a_proj",
    "attention.alpha_out": "self_attn.f_b_proj",
    "attention.z_in": "self_attn.g_a_proj",
    "attention.z_out": "self_attn.g_b_proj",
    "attention.norm": "self_attn.o_norm",
    "mlp.router": "block_sparse_moe.gate",
    "mlp.experts.gate": "block_sparse_moe.experts.*.w1",
    "mlp.experts.up": "block_sparse_moe.experts.*.w3",
    "mlp.experts.down": "block_sparse_moe.experts.*.w2",
    **{
        f"mlp.shared.{part}": f"block_sparse_moe.shared_experts.{part}_proj"
        for part in ("gate", "up", "down")
    },
}


def _read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    read_heads(values, metadata)
    names.recurrent_without_heads(values, metadata)


FAMILY = Family(
    build=build,
    gguf={
        "kimi-linear": GGUFNames(
            hyperparameters={"state.key_dim": "kda.head_dim"},
            layer=GGUF_LATENTS | _GGUF,
            tensors={
                "attention.decay_rates.weight": "ssm_a",
                "attention.step_bias.weight": "ssm_dt.bias",
            },
            read=_read_gguf,
        )
    },
    hf={
        "kimi_linear": FolderNames(
            hyperparameters={
                "context": "model_max_length",
                "state.heads": "linear_attn_config.num_heads",
                "state.key_dim": "linear_attn_config.head_dim",
                "state.taps": "linear_attn_config.short_conv_kernel_size",
            },
            layer=FOLDER_LATENTS | _FOLDER,
            tensors={
                "mlp.selection_bias.weight": "block_sparse_moe.gate.e_score_correction_bias",
                "attention.decay_rates.weight": "self_attn.A_log",
                "attention.step_bias.weight": "self_attn.dt_bias",
            },
            read=config.sizes,
        )
    },
)
