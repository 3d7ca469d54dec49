"""Names of hyperparameters and tensors in Hugging Face folders, by canonical name.

`transformers` writes these names. Code outside this room uses none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
_IN_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.qkv": "self_attn.qkv_proj",
    "attention.output": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.gate_up": "mlp.gate_up_proj",
    "mlp.down": "mlp.down_proj",
    "prediction.projection": "eh_proj",
    "prediction.embedding_norm": "enorm",
    "prediction.state_norm": "hnorm",
    "prediction.embedding": "embed_tokens",
    "prediction.output_norm": "shared_head.norm",
    "prediction.output": "shared_head.head",
}
_MIXTURE = {
    "mlp.router": "mlp.gate",
    "mlp.shared_gate": "mlp.shared_expert_gate",
    **{f"mlp.shared.{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
    **{f"mlp.experts.{part}": f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")},
}
"""Parts of a layer of experts. `*` stands for the number of an expert; see `experts.py`."""
_SHARED_EXPERTS = {
    f"mlp.shared.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")
}
_LATENTS = (
    _MIXTURE
    | _SHARED_EXPERTS
    | {
        "attention.query": "self_attn.q_a_proj",
        "attention.query_norm": "self_attn.q_a_layernorm",
        "attention.query_heads": "self_attn.q_b_proj",
        "attention.latent_key": "self_attn.kv_a_proj_with_mqa",
        "attention.latent_norm": "self_attn.kv_a_layernorm",
        "attention.head_keys_values": "self_attn.kv_b_proj",
    }
)
"""Parts of a layer with latent attention."""
_NORMS_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_NORMS_OF_GLM4 = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_mlp_norm": "post_mlp_layernorm",
}
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
_SHORT_CONV = {
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
}
_MAMBA = {
    "mixer.inputs": "mamba.in_proj",
    "mixer.conv": "mamba.conv1d",
    "mixer.norm": "mamba.norm",
    "mixer.output": "mamba.out_proj",
}
_KIMI_LINEAR = _LATENTS | {
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
_NEMOTRON_H = {
    "norm": "norm",
    **{f"attention.{part}": f"mixer.{part}_proj" for part in ("q", "k", "v")},
    "attention.output": "mixer.o_proj",
    "mixer.inputs": "mixer.in_proj",
    "mixer.conv": "mixer.conv1d",
    "mixer.norm": "mixer.norm",
    "mixer.output": "mixer.out_proj",
    "mlp.router": "mixer.gate",
    "mlp.latent": "mixer.fc1_latent_proj",
    "mlp.result": "mixer.fc2_latent_proj",
    **{f"mlp.{part}": f"mixer.{part}_proj" for part in ("up", "down")},
    **{f"mlp.shared.{part}": f"mixer.shared_experts.{part}_proj" for part in ("up", "down")},
    **{f"mlp.experts.{part}": f"mixer.experts.*.{part}_proj" for part in ("up", "down")},
}
_DIFFERENCES = {
    "kimi_linear": _KIMI_LINEAR,
    "nemotron_h": _NEMOTRON_H,
    "granitemoehybrid": _MAMBA
    | {
        "mlp.router": "block_sparse_moe.router.layer",
        "mlp.experts.gate": "block_sparse_moe.input_linear",
        "mlp.experts.up": "block_sparse_moe.input_linear",
        "mlp.experts.down": "block_sparse_moe.output_linear",
        "mlp.shared.gate_up": "shared_mlp.input_linear",
        "mlp.shared.down": "shared_mlp.output_linear",
    },
    "lfm2": _SHORT_CONV,
    "lfm2_moe": _SHORT_CONV
    | {
        "mlp.router": "feed_forward.gate",
        "mlp.experts.gate": "feed_forward.experts.*.w1",
        "mlp.experts.up": "feed_forward.experts.*.w3",
        "mlp.experts.down": "feed_forward.experts.*.w2",
    },
    "gemma2": _NORMS_AROUND,
    "gemma3_text": _NORMS_AROUND,
    "gemma4_text": _NORMS_AROUND
    | {
        "input.gate": "per_layer_input_gate",
        "input.projection": "per_layer_projection",
        "post_input_norm": "post_per_layer_input_norm",
        "experts_norm": "pre_feedforward_layernorm_2",
        "post_dense_norm": "post_feedforward_layernorm_1",
        "post_experts_norm": "post_feedforward_layernorm_2",
        "mlp.router": "router.proj",
        "mlp.experts.gate": "experts.gate_up_proj",
        "mlp.experts.up": "experts.gate_up_proj",
    },
    "olmo2": _NORMS_AFTER,
    "olmo3": _NORMS_AFTER,
    "glm4": _NORMS_OF_GLM4,
    "glm4_moe": _MIXTURE | _SHARED_EXPERTS,
    "deepseek_v2": _LATENTS,
    "deepseek_v3": _LATENTS,
    "glm4_moe_lite": _LATENTS,
    "gpt_oss": {
        "mlp.router": "mlp.router",
        "mlp.experts.gate": "mlp.experts.gate_up_proj",
        "mlp.experts.up": "mlp.experts.gate_up_proj",
        "mlp.experts.down": "mlp.experts.down_proj",
    },
    "granitemoe": {
        "mlp.router": "block_sparse_moe.router.layer",
        "mlp.experts.gate": "block_sparse_moe.input_linear",
        "mlp.experts.up": "block_sparse_moe.input_linear",
        "mlp.experts.down": "block_sparse_moe.output_linear",
    },
    "mixtral": {
        "mlp.router": "block_sparse_moe.gate",
        "mlp.experts.gate": "block_sparse_moe.experts.*.w1",
        "mlp.experts.up": "block_sparse_moe.experts.*.w3",
        "mlp.experts.down": "block_sparse_moe.experts.*.w2",
    },
    "qwen2_moe": _MIXTURE,
    "qwen3_moe": _MIXTURE,
    "qwen3_next": _MIXTURE | _DELTA_NET,
    "qwen3_5_text": _DELTA_NET,
    "qwen3_5_moe_text": _MIXTURE
    | _DELTA_NET
    | {
        "mlp.experts.gate": "mlp.experts.gate_up_proj",
        "mlp.experts.up": "mlp.experts.gate_up_proj",
    },
}
"""Names of a layer's parts that are particular to one architecture."""

INTERLEAVED = frozenset({"glm4"})
"""Architectures whose rows of q and k are ordered so that rotation pairs neighbours."""

NORMS_WITHOUT_ONE = frozenset(
    {"gemma2", "gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
)
"""Architectures whose norm weights are stored without their offset of 1."""

_IRREGULAR = {
    "mlp.selection_bias.weight": "mlp.gate.e_score_correction_bias",
    "attention.sinks.weight": "self_attn.sinks",
    "mixer.decay_rates.weight": "linear_attn.A_log",
    "mixer.step_bias.weight": "linear_attn.dt_bias",
}


def _mamba_vectors(part: str) -> dict[str, str]:
    """Vectors of a Mamba-2 mixer that files call `part`."""
    return {
        "mixer.decay_rates.weight": f"{part}.A_log",
        "mixer.step_bias.weight": f"{part}.dt_bias",
        "mixer.skip.weight": f"{part}.D",
    }


_IRREGULAR_OF = {
    "kimi_linear": {
        "mlp.selection_bias.weight": "block_sparse_moe.gate.e_score_correction_bias",
        "attention.decay_rates.weight": "self_attn.A_log",
        "attention.step_bias.weight": "self_attn.dt_bias",
    },
    "granitemoehybrid": _mamba_vectors("mamba"),
    "nemotron_h": _mamba_vectors("mixer")
    | {"mlp.selection_bias.weight": "mixer.gate.e_score_correction_bias"},
    "lfm2_moe": {"mlp.selection_bias.weight": "feed_forward.expert_bias"},
    "qwen3_5_moe_text": {"mlp.experts.down.weight": "mlp.experts.down_proj"},
    "gemma4_text": {
        "scale.weight": "layer_scalar",
        "mlp.router_norm.weight": "router.scale",
        "mlp.expert_scales.weight": "router.per_expert_scale",
        "mlp.experts.down.weight": "experts.down_proj",
    },
}
"""Tensors of a layer, by whole names: they do not end as their canonical names do."""


_OUTSIDE_OF = {
    "lfm2": {"output_norm": "model.embedding_norm"},
    "lfm2_moe": {"output_norm": "model.embedding_norm"},
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


_WITHOUT_EXPERTS = {
    "granitemoehybrid": _MAMBA
    | {"mlp.gate_up": "shared_mlp.input_linear", "mlp.down": "shared_mlp.output_linear"},
}
"""Names of a layer's parts in models without experts, where the architecture may have some."""


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
    differences = _DIFFERENCES.get(architecture, {})
    if not has_experts:
        differences = _WITHOUT_EXPERTS.get(architecture, differences)
    irregular = _IRREGULAR | _IRREGULAR_OF.get(architecture, {})
    further = None
    if architecture in HEAD_OUTSIDE and isinstance(layers, int):
        outside |= {f"layers.{layers}.{part}": stored for part, stored in _HEAD_OUTSIDE.items()}
        further = "mtp.layers.", layers
    aliases = _ALIASES.get(architecture)
    in_layer = _IN_LAYER | differences
    return TensorNames(f"{base}layers.", outside, in_layer, irregular, further, aliases)
