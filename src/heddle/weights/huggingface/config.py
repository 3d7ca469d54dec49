"""Reads config.json: a model's hyperparameters under canonical names."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from heddle.doors import architectures
from heddle.errors import UnsupportedModelError
from heddle.weights.huggingface import names
from heddle.weights.huggingface.values import by_kind, numbers_in, scaled
from heddle.weights.hyperparameters import Hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.huggingface.names import FolderNames
    from heddle.weights.huggingface.sentence_modules import SentenceModules
    from heddle.weights.hyperparameters import Bounds

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "relu2": "squared_relu",
}
_ACTIVATION_KEYS = ("hidden_activation", "hidden_act", "mlp_hidden_act")
_SCALINGS = {"default": "none", "mrope": "none", "su": "longrope"}
"""Canonical names of rope scalings that have another name in config.json.

Multimodal rope is plain rope where all tokens are of text."""
_CAPS = ("attention.score_cap", "logit_cap")
"""Hyperparameters that null turns off; without their key, the family's default applies."""
_WINDOWED = {"sliding_attention": True, "full_attention": False}
_RECURRENT = {
    "linear_attention": True,
    "mamba": True,
    "conv": True,
    "chunked_attention": False,
    "indexed_attention": False,
    "minimax_m3_sparse": False,
    "full_attention": False,
    "attention": False,
}

_ROPE = {
    "rope.base": "rope_theta",
    "rope.factor": "factor",
    "rope.original_context": "original_max_position_embeddings",
    "rope.beta_fast": "beta_fast",
    "rope.beta_slow": "beta_slow",
    "attention.temperature": "llama_4_scaling_beta",
    "rope.whole_pairs": "truncate",
    "rope.low_turns": "low_freq_factor",
    "rope.high_turns": "high_freq_factor",
    "rope.short_divisors": "short_factor",
    "rope.long_divisors": "long_factor",
    "rope.share": "partial_rotary_factor",
    "rope.sections": "mrope_section",
    "rope.sections_alternate": "mrope_interleaved",
}
"""Keys of the object that describes rope, by canonical name."""


_LAYERS = ("num_hidden_layers", "num_kv_shared_layers")
"""Keys of which lists by layer are made."""


def text_part(config: Config) -> Config:
    """The configuration of the text model; `config` itself if the model has no other part.

    A text model that names no architecture has that of its row in the families.
    """
    text, whole = config.get("text_config", config.get("llm_config")), config.get("model_type")
    if not isinstance(text, dict):
        return config
    rows = architectures("hf").items()
    owners = [name for name, own in rows if whole in own.with_images]
    if not owners:
        return config
    quantised = ("quantization", "quantization_config")
    shared = (*quantised, "tie_word_embeddings", "bos_token_id", "eos_token_id", "vision_config")
    found = {key: config[key] for key in shared if key in config}
    return found | {"model_type": owners[0]} | text


def hyperparameters_of(config: Config, modules: SentenceModules, bounds: Bounds) -> Hyperparameters:
    """The hyperparameters of config.json and of the modules after it, under canonical names.

    This checks the type of a value only if other values are read according to it.

    Raises:
        ModelFileError: a count exceeds the bounds.
        UnsupportedModelError: config.json has a value that no canonical name can express.
    """
    architecture = str(config.get("model_type"))
    own = names.names_of(architecture)
    keys = {**names.HYPERPARAMETERS, **own.hyperparameters}
    for key in _LAYERS:  # first: lists by layer follow
        bounds.check("layers", config.get(key), key)
    values: Config = {"rope.interleaved": False, **own.values}
    values |= {name: config[key] for name, key in keys.items() if config.get(key) is not None}
    values |= {name: 0.0 for name in _CAPS if _is_null(config, names.HYPERPARAMETERS[name])}
    values |= _activation(config, own) | _windows(config, own) | _experts(config)
    values |= _layers_with_rope(config) | _recurrent(config)
    whole, local = _rope_objects(config)
    values |= _rope(config, whole, own)
    base = local.get("rope_theta", config.get("rope_local_base_freq"))
    if base is not None:
        values["rope.local_base"] = base
    values |= own.read(config)
    # "vision": only images see both sides.
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):
        values["causal"] = False
    if modules.pooling is not None:
        values["pooling"] = modules.pooling
    values |= {f"dense.{i}.width": width for i, (_, width, _) in enumerate(modules.dense)}
    if any(activation for *_, activation in modules.dense):
        values["dense.activations"] = [activation for *_, activation in modules.dense]
    return Hyperparameters(values, partial(_label, keys), bounds)


def _is_null(config: Config, key: str) -> bool:
    return key in config and config[key] is None


def _label(keys: Mapping[str, str], name: str) -> str:
    if name in _ROPE and name not in keys:
        return f"rope_parameters.{_ROPE[name]}"
    others = {
        "rope.scaling": "rope_parameters.rope_type",
        "window_layers": "layer_types",
        "recurrent_layers": "layer_types",
        "expert_layers": "mlp_only_layers",
        "expert_weights_normalised": "norm_topk_prob",
        **{canonical: keys[0] for canonical, keys in _EXPERTS.items()},
        "rope.layers": "no_rope_layers",
        "rope.layer_period": "no_rope_layer_interval",
        "activation": "hidden_act",
        "key_dim": "qk_nope_head_dim",
        "value_dim": "v_head_dim",
        "latent_rank": "kv_lora_rank",
        "query_rank": "q_lora_rank",
        "causal": "use_bidirectional_attention",
        "dense.0.width": "out_features of the first Dense module",
        "dense.1.width": "out_features of the second Dense module",
    }
    return keys.get(name) or others.get(name, name)


def _refuse(key: str, value: object, supported: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"config.json: {key} {value!r} is not supported; supported: {supported}", param=key
    )


def _activation(config: Config, own: FolderNames) -> Config:
    """The activation of feed-forward layers, under one of its keys."""
    known = _ACTIVATIONS | dict(own.activations)
    for key in _ACTIVATION_KEYS:
        value = config.get(key)
        if value is not None:
            if not isinstance(value, str) or value not in known:
                raise _refuse(key, value, ", ".join(known))
            return {"activation": known[value]}
    return {}


def _windows(config: Config, own: FolderNames) -> Config:
    """The layers that attend to a window only; no window if config.json turns windows off."""
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return {"window": None}
    kinds, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if isinstance(kinds, list):
        return {"window_layers": by_kind("layer_types", kinds, _WINDOWED)}
    if own.window_period is not None:
        return {"window_period": own.window_period}
    first = config.get("max_window_layers", 0)  # Qwen: layers before it have no window
    if "sliding_window_pattern" in config or not isinstance(layers, int):
        return {}
    return {"window_layers": [not isinstance(first, int) or i >= first for i in range(layers)]}


def _recurrent(config: Config) -> Config:
    """The layers that have a recurrence in place of attention, if any."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or all(kind in tuple(_WINDOWED) for kind in kinds):
        return {}
    return {"recurrent_layers": by_kind("layer_types", kinds, _RECURRENT)}


_EXPERTS = {
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "experts_used": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "expert_width": ("moe_intermediate_size",),
    "shared_expert_width": ("shared_expert_intermediate_size",),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "dense_layers": ("first_k_dense_replace", "num_dense_layers"),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_groups": ("n_group", "num_expert_group"),
    "expert_groups_used": ("topk_group",),
    "expert_limit": ("swiglu_limit",),
    "expert_slope": ("swiglu_alpha",),
}
"""Keys of a mixture of experts, by canonical name. Families differ in the first."""


def _experts(config: Config) -> dict[str, object]:
    """The mixture of experts; empty if the model has none."""
    found: dict[str, object] = {}
    if config.get("enable_moe_block") is False:
        return found
    for name, keys in _EXPERTS.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if value is not None:
            found[name] = value
    if config.get("norm_topk_prob") is not None:
        found["expert_weights_normalised"] = config["norm_topk_prob"]
    layers, step = config.get("num_hidden_layers"), config.get("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if (step != 1 or dense) and isinstance(layers, int):
        if not isinstance(step, int) or step < 1 or not isinstance(dense, list):
            raise _refuse("decoder_sparse_step", step, "a positive number, with mlp_only_layers")
        without = numbers_in(dense)
        found["expert_layers"] = [
            layer not in without and (layer + 1) % step == 0 for layer in range(layers)
        ]
    return found


def _layers_with_rope(config: Config) -> Config:
    """The layers with rotary positions: a list, or a period. In config.json, 1 means that a layer
    has them, whatever the key is called."""
    listed, period = config.get("no_rope_layers"), config.get("no_rope_layer_interval")
    found = {} if period is None else {"rope.layer_period": period}
    if isinstance(listed, list):
        found["rope.layers"] = [bool(one) for one in listed]
    return found


def _rope_objects(config: Config) -> tuple[Config, Config]:
    """The objects that describe rope: that of layers without a window, and that of windowed layers.

    The second is empty if windowed layers have no object of their own.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise _refuse("rope_parameters", rope, "an object")
    if rope.keys() & _WINDOWED.keys():
        whole, local = rope.get("full_attention") or {}, rope.get("sliding_attention") or {}
        if not isinstance(whole, dict) or not isinstance(local, dict):
            raise _refuse("rope_parameters", rope, "objects by kind of layer")
        if local.get("rope_type", "default") != "default":
            raise _refuse("rope_parameters.sliding_attention", local, "rope_type default")
        return whole, local
    return rope, {}


def _rope(config: Config, rope: Mapping[str, object], own: FolderNames) -> Config:
    """Rope under canonical names. Some keys may also be at the top level of config.json."""
    found = {}
    for name, key in _ROPE.items():
        value = rope.get(key, config.get(key))
        if value is not None:
            found[name] = value
    kind = rope.get("rope_type", rope.get("type", "default"))
    scalings = _SCALINGS | dict(own.scalings)
    found["rope.scaling"] = scalings.get(kind, kind) if isinstance(kind, str) else kind
    share = rope.get("partial_rotary_factor", own.rotated_share)
    share, head = config.get("partial_rotary_factor", share), None
    if kind != "proportional" and isinstance(share, float | int) and share != 1.0:
        head = config.get("head_dim") or _default_head_dim(config)
        if isinstance(head, int):
            found["rope.dim"] = scaled("partial_rotary_factor", share, head)
    return found | _attention_factor(rope, found["rope.scaling"] == "yarn")


def _attention_factor(rope: Mapping[str, object], is_yarn: bool) -> Config:
    """The factor on queries and keys. The canonical factor multiplies yarn's own.

    In config.json, `attention_factor` replaces yarn's own factor, and so do `mscale` and
    `mscale_all_dim` together (`transformers`, `_compute_yarn_parameters`).
    """
    attention, factor = rope.get("attention_factor"), rope.get("factor")
    if not is_yarn or not isinstance(factor, float | int) or factor <= 1:
        return {"rope.attention_factor": attention} if isinstance(attention, float | int) else {}

    def own(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0

    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    if isinstance(attention, float | int):
        return {"rope.attention_factor": attention / own(1.0)}
    if isinstance(above, float | int) and isinstance(below, float | int) and above and below:
        return {"rope.attention_factor": own(above) / own(below) / own(1.0)}
    return {}


def _default_head_dim(config: Config) -> int | None:
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
