"""Names of latent attention in files, and the reading of its hyperparameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from heddle.weights.gguf.names import YARN_LOG_MULTIPLIER
from heddle.weights.huggingface.names import SHARED_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Mapping

GGUF_LATENTS = {
    "attention.query": "attn_q_a",
    "attention.query_norm": "attn_q_a_norm",
    "attention.query_heads": "attn_q_b",
    "attention.latent_key": "attn_kv_a_mqa",
    "attention.latent_norm": "attn_kv_a_norm",
    "attention.head_keys_values": "attn_kv_b",
    "attention.head_keys": "attn_k_b",
    "attention.head_values": "attn_v_b",
}
FOLDER_LATENTS = SHARED_EXPERTS | {
    "attention.query": "self_attn.q_a_proj",
    "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.query_heads": "self_attn.q_b_proj",
    "attention.latent_key": "self_attn.kv_a_proj_with_mqa",
    "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.head_keys_values": "self_attn.kv_b_proj",
}
"""Parts of a layer with latent attention and shared experts."""


def read_heads(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """The sizes of heads: other keys of GGUF have the sizes of the latent."""
    for name, key in (("key_dim", "key_length"), ("value_dim", "value_length")):
        size = metadata.get(f"attention.{key}_mla")
        if size is not None:
            values[name] = size


def read_deepseek(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """The sizes of heads, the routing where a file lacks its key, and yarn's factor on scores."""
    read_heads(values, metadata)
    if values.get("expert_scoring") in (None, 0):
        # Files from before the key are of DeepSeek-V2, or, with these sizes, of GLM-4.7-Flash.
        is_glm = values.get("layers") == 47 and values.get("vocabulary") == 154_880
        values["expert_scoring"] = "sigmoid" if is_glm else "softmax"
    values.setdefault("expert_weights_normalised", False)
    values["expert_group_best"] = 1 if values["expert_scoring"] == "softmax" else 2
    multiplier, factor = metadata.get(YARN_LOG_MULTIPLIER), values.get("rope.factor")
    if isinstance(multiplier, float) and isinstance(factor, float | int) and factor > 1:
        scale, growth = values.get("rope.attention_factor", 1.0), 0.1 * math.log(factor)
        # The multiplier is a tenth of `mscale_all_dim`.
        values["rope.attention_factor"] = scale / (growth + 1.0)
        values["rope.score_factor"] = (10 * multiplier * growth + 1.0) ** 2
