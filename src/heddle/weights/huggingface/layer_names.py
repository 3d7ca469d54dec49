"""Names of the tensors of a layer in Hugging Face folders, by canonical name.

`transformers` writes these names. `names.py` has the names of everything else.
"""

from __future__ import annotations

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
_MIXERS = {
    "norm": "norm",
    "mixer.inputs": "mixer.in_proj",
    "mixer.conv": "mixer.conv1d",
    "mixer.norm": "mixer.norm",
    "mixer.output": "mixer.out_proj",
}
"""Parts of layers of one part, which files call mixer."""
_NEMOTRON_H = _MIXERS | {
    **{f"attention.{part}": f"mixer.{part}_proj" for part in ("q", "k", "v")},
    "attention.output": "mixer.o_proj",
    "mlp.router": "mixer.gate",
    "mlp.latent": "mixer.fc1_latent_proj",
    "mlp.result": "mixer.fc2_latent_proj",
    **{f"mlp.{part}": f"mixer.{part}_proj" for part in ("up", "down")},
    **{f"mlp.shared.{part}": f"mixer.shared_experts.{part}_proj" for part in ("up", "down")},
    **{f"mlp.experts.{part}": f"mixer.experts.*.{part}_proj" for part in ("up", "down")},
}
_DIFFERENCES = {
    "falcon_h1": _MAMBA
    | {
        "mlp_norm": "pre_ff_layernorm",
        **{f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    },
    "kimi_linear": _KIMI_LINEAR,
    "mamba2": _MIXERS,
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
    "falcon_h1": _mamba_vectors("mamba"),
    "mamba2": _mamba_vectors("mixer"),
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

_WITHOUT_EXPERTS = {
    "granitemoehybrid": _MAMBA
    | {"mlp.gate_up": "shared_mlp.input_linear", "mlp.down": "shared_mlp.output_linear"},
}
"""Names of a layer's parts in models without experts, where the architecture may have some."""


def layer_names(
    architecture: str, *, has_experts: bool = True
) -> tuple[dict[str, str], dict[str, str]]:
    """Parts of a layer, and tensors by whole names that do not end as their canonical names do.

    `has_experts` says whether the model has layers with experts.
    """
    differences = _DIFFERENCES.get(architecture, {})
    if not has_experts:
        differences = _WITHOUT_EXPERTS.get(architecture, differences)
    return _IN_LAYER | differences, _IRREGULAR | _IRREGULAR_OF.get(architecture, {})
