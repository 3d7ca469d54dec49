"""GGUF's names of hyperparameters and tensors, and their canonical names.

The names are those of llama.cpp (`gguf-py/gguf/constants.py`, `tensor_mapping.py`). Here are those
that most architectures share. A family brings what is particular to its files, as `GGUFNames`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heddle.doors import family_with
from heddle.weights.tensor_names import TensorNames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ARCHITECTURE = "general.architecture"
NAME = "general.name"
CHAT_TEMPLATE = "tokenizer.chat_template"
TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFNames:
    """The names and values that are particular to files of one architecture.

    Attributes:
        hyperparameters: keys after the architecture's name, by canonical name.
        values: hyperparameters that files do not name.
        outside: parts outside of layers, by canonical part.
        layer: parts of a layer, by canonical part; empty: it has no such part.
        tensors: whole names of tensors of a layer that do not end as their canonical names do.
        fused: tensors that files have in place of their parts.
        plain: how keys begin that files have without the architecture's name; empty: no such keys.
        read: completes the hyperparameters, which it may change, from the metadata, whose keys are
            those after the architecture's name, or `plain` ones. Values are not checked.
    """

    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    layer: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    fused: tuple[str, ...] = ()
    plain: str = ""
    read: Callable[[dict[str, Any], Mapping[str, object]], None] = lambda values, metadata: None


def names_of(architecture: str) -> GGUFNames:
    """The names for files of an architecture, a value of `general.architecture`.

    They are empty if no family has the architecture.
    """
    family = family_with("gguf", architecture)
    return GGUFNames() if family is None else family.gguf[architecture]


INTERLEAVED = {"rope.interleaved": True}
"""Value of architectures whose rows of q and k are ordered so that rotation pairs neighbours.

In files of other architectures the rows have Hugging Face's order (llama.cpp,
`llama_model_rope_type`)."""

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
    "rope.sections": "rope.dimension_sections",
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

OF_TOKENIZER = {
    "separator": "tokenizer.ggml.seperator_token_id",  # llama.cpp's spelling
    "segments": "tokenizer.ggml.token_type_count",
}
"""Hyperparameters of encoders whose keys are those of the tokenizer."""

YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
"""Key after the architecture's name. Yarn divides its own factor by 1 + 0.1 * this * ln(factor)."""

PREDICTION_LAYERS = "nextn_predict_layers"
"""Key after the architecture's name: how many of the layers predict further tokens. They come last.
"""

WINDOWED = {"key_dim": "attention.key_length_swa", "value_dim": "attention.value_length_swa"}
"""Keys after the architecture's name, for layers with a window, where they differ."""

_OUTSIDE_LAYERS = {
    "embedding": "token_embd",
    "output_norm": "output_norm",
    "output": "output",
    "dense.0": "dense_2",
    "dense.1": "dense_3",
    "rope_divisors": "rope_freqs",
    "rope_divisors_long": "rope_factors_long",
    "rope_divisors_short": "rope_factors_short",
}
_IN_LAYER = {
    "attention_norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.qkv": "attn_qkv",
    "attention.output": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
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
    "post_mlp_norm": "post_ffw_norm",
    "prediction.projection": "nextn.eh_proj",
    "prediction.embedding_norm": "nextn.enorm",
    "prediction.state_norm": "nextn.hnorm",
    "prediction.embedding": "nextn.embed_tokens",
    "prediction.output_norm": "nextn.shared_head_norm",
    "prediction.output": "nextn.shared_head_head",
}
_IRREGULAR = {"mlp.selection_bias.weight": "exp_probs_b.bias"}
"""Tensors of a layer, by whole names: they do not end as their canonical names do."""


def tensor_names(architecture: str) -> TensorNames:
    """The tensor names of one architecture, a value of `general.architecture`."""
    own = names_of(architecture)
    in_layer = {name: label for name, label in {**_IN_LAYER, **own.layer}.items() if label}
    return TensorNames(
        ("blk.",), _OUTSIDE_LAYERS | dict(own.outside), in_layer, _IRREGULAR | dict(own.tensors)
    )
