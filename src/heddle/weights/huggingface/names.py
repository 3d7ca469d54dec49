"""Names of hyperparameters and tensors in Hugging Face folders, by canonical name.

`transformers` writes these names. Code outside this room uses none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.weights.huggingface.layer_names import layer_names
from heddle.weights.tensor_names import TensorNames

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

HYPERPARAMETERS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "key_dim": "head_dim",
    "shared_layers": "num_kv_shared_layers",
    "layer_input_width": "hidden_size_per_layer_input",
    "attention_period": "full_attention_interval",
    "state.heads": "linear_num_value_heads",
    "state.groups": "linear_num_key_heads",
    "state.key_dim": "linear_key_head_dim",
    "state.value_dim": "linear_value_head_dim",
    "state.taps": "linear_conv_kernel_dim",
    "context": "max_position_embeddings",
    "vocabulary": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "window": "sliding_window",
    "window_period": "sliding_window_pattern",
    "attention.score_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
    "attention.scale_dim": "query_pre_attn_scalar",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_divisor": "logits_scaling",
    "prediction_layers": "num_nextn_predict_layers",
}
"""Keys of config.json, by canonical name. The keys of rope are in `config.py`."""

_SHORT_CONV_KEYS = {"norm_eps": "norm_eps", "state.taps": "conv_L_cache"}
_MAMBA_KEYS = {
    "state.heads": "mamba_n_heads",
    "state.groups": "mamba_n_groups",
    "state.key_dim": "mamba_d_state",
    "state.taps": "mamba_d_conv",
}
_HEAD_OF_QWEN = {"prediction_layers": "mtp_num_hidden_layers"}
HYPERPARAMETERS_OF = {
    "qwen3_5_text": _HEAD_OF_QWEN,
    "qwen3_5_moe_text": _HEAD_OF_QWEN,
    "kimi_linear": {
        "context": "model_max_length",
        "state.heads": "linear_attn_config.num_heads",
        "state.key_dim": "linear_attn_config.head_dim",
        "state.taps": "linear_attn_config.short_conv_kernel_size",
    },
    "mamba2": {
        "norm_eps": "layer_norm_epsilon",
        "state.heads": "num_heads",
        "state.groups": "n_groups",
        "state.key_dim": "state_size",
        "state.taps": "conv_kernel",
    },
    "nemotron_h": {
        "norm_eps": "layer_norm_epsilon",
        "layer_parts": "layers_block_type",
        "state.heads": "mamba_num_heads",
        "state.groups": "n_groups",
        "state.key_dim": "ssm_state_size",
        "state.taps": "conv_kernel",
        "expert_latent": "moe_latent_size",
        "shared_expert_width": "moe_shared_expert_intermediate_size",
    },
    "falcon_h1": _MAMBA_KEYS,
    "lfm2": _SHORT_CONV_KEYS,
    "lfm2_moe": _SHORT_CONV_KEYS,
    "granitemoehybrid": _MAMBA_KEYS
    | {
        "mlp_width": "shared_intermediate_size",
        "shared_expert_width": "shared_intermediate_size",
        "expert_width": "intermediate_size",
    },
}
"""Keys that are particular to one architecture."""

_OUTSIDE_LAYERS = {
    "embedding": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "layer_inputs.embedding": "model.embed_tokens_per_layer",
    "layer_inputs.projection": "model.per_layer_model_projection",
    "layer_inputs.norm": "model.per_layer_projection_norm",
}
INTERLEAVED = frozenset({"glm4"})
"""Architectures whose rows of q and k are ordered so that rotation pairs neighbours."""

NORMS_WITHOUT_ONE = frozenset(
    {"gemma2", "gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
)
"""Architectures whose norm weights are stored without their offset of 1."""

_OUTSIDE_OF = {
    "lfm2": {"output_norm": "model.embedding_norm"},
    "lfm2_moe": {"output_norm": "model.embedding_norm"},
    "falcon_h1": {"output_norm": "model.final_layernorm"},
    "mamba2": {"embedding": "model.embeddings", "output_norm": "model.norm_f"},
    "nemotron_h": {"embedding": "model.embeddings", "output_norm": "model.norm_f"},
}
"""Names outside layers that are particular to one architecture."""

HEAD_OUTSIDE = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""Architectures whose prediction head lies outside of the model's layers, as `mtp`."""
_HEAD_OUTSIDE = {
    "prediction.projection": "mtp.fc",
    "prediction.embedding_norm": "mtp.pre_fc_norm_embedding",
    "prediction.state_norm": "mtp.pre_fc_norm_hidden",
    "prediction.output_norm": "mtp.norm",
}
_ALIASES = {
    # Experts of the head are stored one by one, those of layers together.
    "qwen3_5_moe_text": {
        f"mlp.experts.*.{part}_proj.weight": f"mlp.experts.{part}.weight"
        for part in ("gate", "up", "down")
    },
}

_BASE = "model."
_BASES = {
    _BASE: "",
    "backbone.": "",  # Mamba-2's name
    "": "",  # somebody saved the model without its output matrix
    "language_model.model.": "language_model.",  # models that see images, too
    "model.language_model.": "",
}
"""Prefixes of all tensors but the output matrix, and for each prefix that of the output matrix."""


def base_of(labels: Container[str]) -> str:
    """The prefix of a folder's tensors, whose names are `labels`."""
    embeddings = ("embed_tokens.weight", "embeddings.weight")
    found = (base for base in _BASES if any(f"{base}{label}" in labels for label in embeddings))
    return next(found, _BASE)


def tensor_names(
    architecture: str,
    *,
    base: str = _BASE,
    layers: object = 0,
    dense: Sequence[str] = (),
    has_experts: bool = True,
) -> TensorNames:
    """The tensor names of one architecture, a value of `model_type`.

    Args:
        architecture: the value of `model_type`.
        has_experts: whether the model has layers with experts.
        base: see :func:`base_of`.
        layers: the number of layers, unchecked.
        dense: folders of dense layers after the last norm.
    """
    outside = _OUTSIDE_LAYERS | _OUTSIDE_OF.get(architecture, {})
    outside |= {f"dense.{i}": f"{folder}/linear" for i, folder in enumerate(dense)}
    for name, stored in outside.items():
        if stored.startswith(_BASE):
            outside[name] = base + stored.removeprefix(_BASE)
    outside["output"] = _BASES[base] + outside["output"]
    in_layer, irregular = layer_names(architecture, has_experts=has_experts)
    further = None
    if architecture in HEAD_OUTSIDE and isinstance(layers, int):
        outside |= {f"layers.{layers}.{part}": stored for part, stored in _HEAD_OUTSIDE.items()}
        further = "mtp.layers.", layers
    aliases = _ALIASES.get(architecture)
    return TensorNames(f"{base}layers.", outside, in_layer, irregular, further, aliases)
