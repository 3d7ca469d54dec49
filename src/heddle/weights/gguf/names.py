"""GGUF's names of hyperparameters and tensors, and their canonical names.

The names are those of llama.cpp (`gguf-py/gguf/constants.py`, `tensor_mapping.py`). No code outside
this folder uses them.
"""

from __future__ import annotations

from heddle.weights.tensor_names import TensorNames

ARCHITECTURE = "general.architecture"
NAME = "general.name"
CHAT_TEMPLATE = "tokenizer.chat_template"
TOKENS = "tokenizer.ggml.tokens"

HYPERPARAMETERS = {
    "layers": "block_count",
    "width": "embedding_length",
    "mlp_width": "feed_forward_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "key_dim": "attention.key_length",
    "value_dim": "attention.value_length",
    "query_rank": "attention.q_lora_rank",
    "latent_rank": "attention.kv_lora_rank",
    "shared_layers": "attention.shared_kv_layers",
    "layer_input_width": "embedding_length_per_layer_input",
    "recurrent_layers": "attention.recurrent_layers",
    "attention_period": "full_attention_interval",
    "state.heads": "ssm.time_step_rank",
    "state.groups": "ssm.group_count",
    "state.key_dim": "ssm.state_size",
    "state.inner": "ssm.inner_size",
    "state.taps": "ssm.conv_kernel",
    "context": "context_length",
    "vocabulary": "vocab_size",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "window": "attention.sliding_window",
    "window_period": "attention.sliding_window_pattern",
    "experts": "expert_count",
    "experts_used": "expert_used_count",
    "expert_width": "expert_feed_forward_length",
    "expert_latent": "moe_latent_size",
    "shared_expert_width": "expert_shared_feed_forward_length",
    "shared_experts": "expert_shared_count",
    "dense_layers": "leading_dense_block_count",
    "expert_scoring": "expert_gating_func",
    "expert_weights_normalised": "expert_weights_norm",
    "expert_weights_scale": "expert_weights_scale",
    "expert_groups": "expert_group_count",
    "expert_groups_used": "expert_group_used_count",
    "attention.score_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
    "embedding_scale": "embedding_scale",
    "residual_scale": "residual_scale",
    "logit_divisor": "logit_scale",
    "attention.scale": "attention.scale",
    "attention.temperature": "attention.temperature_scale",
    "attention.temperature_length": "attention.temperature_length",
    "rope.dim": "rope.dimension_count",
    "rope.base": "rope.freq_base",
    "rope.local_base": "rope.freq_base_swa",
    "rope.local_dim": "rope.dimension_count_swa",
    "rope.scaling": "rope.scaling.type",
    "rope.factor": "rope.scaling.factor",
    "rope.original_context": "rope.scaling.original_context_length",
    "rope.attention_factor": "rope.scaling.attn_factor",
    "rope.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.beta_slow": "rope.scaling.yarn_beta_slow",
    "causal": "attention.causal",
    "dense.0.width": "dense_2_feat_out",
    "dense.1.width": "dense_3_feat_out",
    "pooling": "pooling_type",
}
"""Keys after the architecture's name, by canonical name."""

_SHORT_CONV_KEYS = {"state.taps": "shortconv.l_cache"}
HYPERPARAMETERS_OF = {
    "kimi-linear": {"state.key_dim": "kda.head_dim"},
    "lfm2": _SHORT_CONV_KEYS,
    "lfm2moe": _SHORT_CONV_KEYS,
}
"""Keys after the architecture's name that are particular to one architecture."""

SHORT_CONVOLUTIONS = frozenset({"lfm2", "lfm2moe"})
"""Architectures with short convolutions in place of attention in some layers."""

RECURRENT_IF_NO_HEADS = SHORT_CONVOLUTIONS | {"granitehybrid", "kimi-linear"}
"""Architectures whose layers have a recurrence where their number of key/value heads is 0."""

ONE_PART = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Architectures whose layers have one part each. A layer with neither key/value heads nor a width
of its feed-forward part has a recurrence."""

RECURRENT = frozenset({"mamba2"})
"""Architectures whose layers all have a recurrence and nothing else."""

BESIDE = frozenset({"falcon-h1"})
"""Architectures whose layers all have a recurrence beside attention."""

MAMBA = ONE_PART | RECURRENT | BESIDE | {"granitehybrid"}
"""Architectures with Mamba-2. Its vectors are stored as matrices."""

TILED = frozenset({"qwen35", "qwen35moe"})
"""Architectures whose value heads are ordered so that head i has key head i modulo their number."""

ENCODERS = frozenset({"gemma-embedding"})
"""Architectures whose attention is not causal unless the file says so."""

DEEPSEEK = "deepseek2"
"""The architecture of all models with latent attention in all layers."""

LATENT_ATTENTION = frozenset({DEEPSEEK, "kimi-linear"})
"""Architectures with latent attention."""

INTERLEAVED = frozenset(
    {
        *("llama", "mistral3", "smollm3", "granite", "granitemoe", "granitehybrid", "glm4"),
        DEEPSEEK,
    }
)
"""Architectures whose rows of q and k are ordered so that rotation pairs neighbours.

In files of other architectures the rows have Hugging Face's order (llama.cpp,
`llama_model_rope_type`)."""

YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
"""Key after the architecture's name. Yarn divides its own factor by 1 + 0.1 * this * ln(factor)."""

YARN_BETWEEN_PAIRS = frozenset({"gpt-oss"})
"""Architectures whose stretch by yarn may begin and end between two pairs. No key says so."""

ROPE_FINETUNED = "rope.scaling.finetuned"
WITHOUT_ROPE_UNLESS_FINETUNED = frozenset({"granite", "granitemoe", "granitehybrid"})
"""Architectures that have no positions if `ROPE_FINETUNED` is false (llama.cpp, `granite.cpp`)."""

LATENT = {"key_dim": "attention.key_length_mla", "value_dim": "attention.value_length_mla"}
"""Keys after the architecture's name: sizes of heads of latent attention, where other keys have the
sizes of the latent."""

PREDICTION_LAYERS = "nextn_predict_layers"
"""Key after the architecture's name: how many of the layers predict further tokens. They come last.
"""

WINDOWED = {"key_dim": "attention.key_length_swa", "value_dim": "attention.value_length_swa"}
"""Keys after the architecture's name, for layers with a window, where they differ."""

WINDOW_IN_ALL_LAYERS = frozenset({"phi3"})
"""Architectures that have a window in all layers if a key gives its width.

llama.cpp ignores the window of Phi-3; `transformers` does not."""

_OUTSIDE_LAYERS = {
    "embedding": "token_embd",
    "output_norm": "output_norm",
    "output": "output",
    "layer_inputs.embedding": "per_layer_token_embd",
    "layer_inputs.projection": "per_layer_model_proj",
    "layer_inputs.norm": "per_layer_proj_norm",
    "dense.0": "dense_2",
    "dense.1": "dense_3",
    "rope_divisors": "rope_freqs",
    "rope_divisors_long": "rope_factors_long",
    "rope_divisors_short": "rope_factors_short",
}
_IN_LAYER = {
    "scale": "layer_output_scale",
    "input.gate": "inp_gate",
    "input.projection": "proj",
    "post_input_norm": "post_norm",
    "attention_norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.qkv": "attn_qkv",
    "attention.output": "attn_output",
    "attention.sinks": "attn_sinks",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.query": "attn_q_a",
    "attention.query_norm": "attn_q_a_norm",
    "attention.query_heads": "attn_q_b",
    "attention.latent_key": "attn_kv_a_mqa",
    "attention.latent_norm": "attn_kv_a_norm",
    "attention.head_keys_values": "attn_kv_b",
    "attention.head_keys": "attn_k_b",
    "attention.head_values": "attn_v_b",
    "post_attention_norm": "post_attention_norm",
    "mixer.qkvz": "ssm_in",
    "mixer.z": "attn_gate",
    "mixer.ba": "ssm_ba",
    "mixer.beta": "ssm_beta",
    "mixer.alpha": "ssm_alpha",
    "mixer.conv": "ssm_conv1d",
    "mixer.norm": "ssm_norm",
    "mixer.output": "ssm_out",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate": "ffn_gate_exps",
    "mlp.experts.up": "ffn_up_exps",
    "mlp.experts.down": "ffn_down_exps",
    "mlp.experts.gate_up": "ffn_gate_up_exps",
    "mlp.shared.gate": "ffn_gate_shexp",
    "mlp.shared.up": "ffn_up_shexp",
    "mlp.shared.down": "ffn_down_shexp",
    "mlp.shared_gate": "ffn_gate_inp_shexp",
    "mlp.latent": "ffn_latent_down",
    "mlp.result": "ffn_latent_up",
    "post_mlp_norm": "post_ffw_norm",
    "prediction.projection": "nextn.eh_proj",
    "prediction.embedding_norm": "nextn.enorm",
    "prediction.state_norm": "nextn.hnorm",
    "prediction.embedding": "nextn.embed_tokens",
    "prediction.output_norm": "nextn.shared_head_norm",
    "prediction.output": "nextn.shared_head_head",
    "experts_norm": "pre_ffw_norm_2",
    "post_dense_norm": "post_ffw_norm_1",
    "post_experts_norm": "post_ffw_norm_2",
}
_IRREGULAR = {
    "mlp.selection_bias.weight": "exp_probs_b.bias",
    "mixer.decay_rates.weight": "ssm_a",
    "mixer.step_bias.weight": "ssm_dt.bias",
    "mixer.skip.weight": "ssm_d",
}
_IRREGULAR_OF = {
    "falcon-h1": {"mlp_norm.weight": "ffn_norm"},
    "kimi-linear": {
        "attention.decay_rates.weight": "ssm_a",
        "attention.step_bias.weight": "ssm_dt.bias",
    },
    "gemma4": {
        "mlp.router_norm.weight": "ffn_gate_inp.scale",
        "mlp.expert_scales.weight": "ffn_down_exps.scale",
    },
}
"""Tensors of a layer, by whole names: they do not end as their canonical names do."""

_GATE_BEFORE_UP = {"mlp.gate_up": "ffn_up"}
_QWEN3_NEXT = {
    "mlp_norm": "post_attention_norm",
    "attention.qkv": "",  # such files have it apart
    "mixer.qkv": "attn_qkv",
}
_SHORT_CONV = {
    "mixer.inputs": "shortconv.in_proj",
    "mixer.conv": "shortconv.conv",
    "mixer.output": "shortconv.out_proj",
}
_MAMBA = {"mixer.inputs": "ssm_in", "mixer.qkvz": ""}
_KIMI_DELTA = {
    **{f"attention.{part}_conv": f"ssm_conv1d_{part}" for part in ("q", "k", "v")},
    "attention.beta": "ssm_beta",
    "attention.alpha_in": "ssm_f_a",
    "attention.alpha_out": "ssm_f_b",
    "attention.z_in": "ssm_g_a",
    "attention.z_out": "ssm_g_b",
    "attention.norm": "ssm_norm",
    **{f"mixer.{part}": "" for part in ("beta", "norm")},
}
_ONE_NORM = {"norm": "attn_norm", "attention_norm": ""}
_DIFFERENCES = {
    "granitehybrid": _MAMBA,
    "falcon-h1": _MAMBA,
    "kimi-linear": _KIMI_DELTA,
    "lfm2": _SHORT_CONV,
    "lfm2moe": _SHORT_CONV,
    **dict.fromkeys(ONE_PART | RECURRENT, _MAMBA | _ONE_NORM),
    "phi3": _GATE_BEFORE_UP,
    "glm4": _GATE_BEFORE_UP,
    "gpt-oss": {"mlp_norm": "post_attention_norm"},
    "glm4moe": {"mlp_norm": "post_attention_norm"},
    "seed_oss": {"mlp_norm": "post_attention_norm"},
    "qwen3next": _QWEN3_NEXT,
    "qwen35": _QWEN3_NEXT,
    "qwen35moe": _QWEN3_NEXT,
}
"""Names of a layer's parts that are particular to one architecture; empty: it has no such part."""

_OUTSIDE_OF = {
    "lfm2": {"output_norm": "token_embd_norm"},
    "lfm2moe": {"output_norm": "token_embd_norm"},
}
"""Names outside layers that are particular to one architecture."""

FUSED = {
    "phi3": ("attention.qkv", "mlp.gate_up"),
    "glm4": ("mlp.gate_up",),
}
"""Tensors that an architecture's files have in place of their parts."""


def tensor_names(architecture: str) -> TensorNames:
    """The tensor names of one architecture, a value of `general.architecture`."""
    differences = _DIFFERENCES.get(architecture, {})
    irregular = _IRREGULAR | _IRREGULAR_OF.get(architecture, {})
    in_layer = {name: label for name, label in (_IN_LAYER | differences).items() if label}
    outside = _OUTSIDE_LAYERS | _OUTSIDE_OF.get(architecture, {})
    return TensorNames("blk.", outside, in_layer, irregular)
