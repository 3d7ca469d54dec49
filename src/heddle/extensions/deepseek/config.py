"""Readers of the keys of config.json that only models with latent attention have.

DeepSeek-V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5, Mistral 4 and Sarvam. `transformers` defines the
meaning of the keys (`DeepseekV2Config`, `DeepseekV3Config`, `Glm4MoeLiteConfig`, `Mistral4Config`,
`SarvamMLAConfig`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.weights.huggingface.values import by_kind

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

_NORM_EPS = 1e-6
"""Epsilon of the norms of the latent and of compressed queries, whatever `rms_norm_eps` says."""
_KINDS_OF_LAYERS = {"sparse": True, "dense": False}


def sizes(config: Config) -> dict[str, object]:
    """Hyperparameters of attention and routing, under canonical names.

    Raises:
        UnsupportedModelError: a value that no canonical name can express.
    """
    found = attention_sizes(config) | _score_factor(config)
    found["rope.interleaved"] = config.get("rope_interleave") is not False
    kind = config.get("model_type")
    is_v2, is_lite = kind == "deepseek_v2", kind == "glm4_moe_lite"
    scoring = "softmax" if kind in ("deepseek_v2", "mistral4") else "sigmoid"
    check(config, "scoring_func", (None, scoring))
    found["expert_scoring"] = scoring
    found |= _routing_of_v2(config) if is_v2 else {}
    if not is_v2 and config.get("norm_topk_prob") is None:
        found["expert_weights_normalised"] = True
    return found | (layers_with_experts(config) if is_lite or "mlp_layer_types" in config else {})


def attention_sizes(config: Config) -> dict[str, object]:
    """The sizes of latent attention, under canonical names."""
    turned, plain = config.get("qk_rope_head_dim"), config.get("qk_nope_head_dim")
    found: dict[str, object] = {"latent_norm_eps": _NORM_EPS, "rope.dim": turned}
    if isinstance(turned, int) and isinstance(plain, int):
        found["key_dim"] = turned + plain
    names = {"v_head_dim": "value_dim", "kv_lora_rank": "latent_rank", "q_lora_rank": "query_rank"}
    return found | {name: config[key] for key, name in names.items() if config.get(key) is not None}


def _score_factor(config: Config) -> dict[str, object]:
    """The factor on scores that goes with a scaling of positions."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        return {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor, multiplier = rope.get("factor"), rope.get("mscale_all_dim")
    if not isinstance(factor, float | int) or not isinstance(multiplier, float | int):
        return {}
    if kind == "default" or factor <= 1:
        return {}
    return {"rope.score_factor": (0.1 * multiplier * math.log(factor) + 1.0) ** 2}


def _routing_of_v2(config: Config) -> dict[str, object]:
    """Groups count with their best expert, and only with the method that limits groups."""
    check(config, "topk_method", (None, "greedy", "group_limited_greedy"))
    # `transformers` ignores the key; DeepSeek's own code then leaves out the factor on weights.
    check(config, "norm_topk_prob", (None, False))
    found: dict[str, object] = {"expert_group_best": 1}
    if config.get("topk_method") != "group_limited_greedy":
        found |= {"expert_groups": 1, "expert_groups_used": 1}
    return found


def layers_with_experts(config: Config) -> dict[str, object]:
    """The layers that have experts: a list, or else all but the first ones.

    Raises:
        UnsupportedModelError: a layer has a feed-forward part of another kind.
    """
    kinds = config.get("mlp_layer_types")
    if not isinstance(kinds, list):
        return {"dense_layers": config.get("first_k_dense_replace", 1)}
    return {"expert_layers": by_kind("mlp_layer_types", kinds, _KINDS_OF_LAYERS)}


def check(config: Config, key: str, supported: tuple[object, ...]) -> None:
    """Raise UnsupportedModelError if `key` has another value. None: the key may be absent."""
    if config.get(key) not in supported:
        raise _refused(key, config.get(key), supported)


def _refused(key: str, value: object, supported: tuple[object, ...]) -> UnsupportedModelError:
    named = ", ".join(str(one) for one in supported if one is not None)
    return UnsupportedModelError(
        f"config.json: {key} {value!r} is not supported; supported: {named}", param=key
    )
