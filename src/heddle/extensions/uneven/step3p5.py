"""Step 3.5 Flash, and the text part of Step 3.7 Flash: gates of heads, limited SwiGLU, experts.

Layers with a window have more query heads, a rope base of their own, and rotate whole heads. The
result of each head has a gate. Experts are scored by sigmoids and chosen with a bias. In some
layers, the activation is limited.

StepFun 2026 (https://huggingface.co/stepfun-ai/Step-3.5-Flash); `transformers`, `step3p7`;
llama.cpp, `conversion/step3.py` and `step35.cpp`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.errors import UnsupportedModelError
from heddle.extensions.uneven.layers import (
    decoder_of,
    experts_where_stored,
    read_attentions,
    without_heads_for_further_tokens,
)
from heddle.models.experts import MixtureOfExperts, feed_forwards
from heddle.models.family import Family
from heddle.models.feed_forward import GatedMLP
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames
from heddle.weights.huggingface.values import by_kind, scaled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.base import Sizes
    from heddle.models.blocks import FeedForward
    from heddle.models.decoder import Decoder
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_ACTIVATIONS = {0.0: "silu", 7.0: "silu_to_7", 16.0: "silu_to_16"}
"""Activations by their limit; 0: none. The published models have these."""
_KINDS = {"sliding_attention": True, "full_attention": False}


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: the activation has another limit than in the published models.
    """
    read = hyperparameters
    eps = read.number("norm_eps")
    attentions = [
        replace(one, norm_eps=eps, gates=1, divisors=0 if one.spec.window else one.value_dim // 2)
        for one in read_attentions(read, context)
    ]

    def mlps(sizes: Sizes) -> list[FeedForward]:
        read.choice("activation", ("silu",), "silu")
        plain = feed_forwards(read, sizes, "silu", scoring="sigmoid")
        layers = len(plain)
        of_experts = _activations(read, "expert_limit", layers)
        of_others = _activations(read, "mlp_limit", layers)
        limited = map(_with_activations, plain, of_experts, of_others)
        dense = [GatedMLP(sizes.shape.width, sizes.mlp_width, one) for one in of_others]
        return experts_where_stored(dense, list(limited))

    return decoder_of(read, attentions, mlps)


def _activations(read: Hyperparameters, name: str, layers: int) -> list[str]:
    """The activation of each layer."""
    limits = read.get(name)
    if limits is None:
        return ["silu"] * layers
    if not isinstance(limits, list) or len(limits) != layers:
        read.fail(name, f"must have {layers} entries, got {limits!r}")
    wrong = [one for one in limits if not isinstance(one, float | int) or one not in _ACTIVATIONS]
    if wrong:
        label = read.label(name)
        raise UnsupportedModelError(
            f"{label} {wrong[0]!r} is not supported; supported: 0, 7, 16", param=label
        )
    return [_ACTIVATIONS[one] for one in limits]


def _with_activations(mlp: FeedForward, of_experts: str, of_others: str) -> FeedForward:
    if isinstance(mlp, MixtureOfExperts):
        shared = mlp.shared
        if isinstance(shared, GatedMLP):
            shared = replace(shared, activation=of_others)
        return replace(mlp, spec=replace(mlp.spec, activation=of_experts), shared=shared)
    assert isinstance(mlp, GatedMLP), "silu has gates"
    return replace(mlp, activation=of_others)


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Layers with a window rotate as much as the key says, the others half (llama.cpp)."""
    without_heads_for_further_tokens(values, "expert_limit", "mlp_limit")
    values.pop("dense_layers", None)  # the tensors say it
    if values.get("expert_scoring") == 0:
        del values["expert_scoring"]
    whole = values.get("rope.dim", values.get("key_dim"))
    if isinstance(whole, int):
        values["rope.local_dim"], values["rope.dim"] = whole, whole // 2


def _read_config(config: Config) -> Config:
    """Values under the keys of `transformers`, or under those of the published folder."""
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int):
        return {}
    for key, supported in (("use_head_wise_attn_gate", True), ("zero_centered", True)):
        if config.get(key) not in (None, supported):
            raise _refused(key, config[key], supported)
    kinds = config.get("layer_types")
    windowed = by_kind("layer_types", kinds[:layers], _KINDS) if isinstance(kinds, list) else []
    found: dict[str, object] = {"window_layers": windowed or None}
    others = config.get("attention_other_setting")
    others = others if isinstance(others, dict) else {}
    heads, groups = config.get("num_attention_heads"), config.get("num_attention_groups")
    if groups is None:
        groups = config.get("num_key_value_heads")
    of_windows = config.get("num_sliding_attention_heads") or heads
    sizes = {
        "heads": (heads, others.get("num_attention_heads", of_windows)),
        "kv_heads": (groups, others.get("num_attention_groups", groups)),
        "key_dim": (config.get("head_dim"), others.get("head_dim", config.get("head_dim"))),
    }
    for name, (whole, within) in sizes.items():
        found[name] = [within if one else whole for one in windowed] or whole
    for name, key in (("expert_limit", "swiglu_limits"), ("mlp_limit", "swiglu_limits_shared")):
        limits = config.get(key)
        if isinstance(limits, list):
            found[name] = [one or 0.0 for one in limits[:layers]]
    for name, keys in _EXPERTS.items():
        for key in keys:
            if config.get(key) is not None:
                found[name] = config[key]
    return found | _rotation(config, windowed)


_EXPERTS = {
    "experts": ("n_routed_experts", "moe_num_experts"),
    "experts_used": ("num_experts_per_tok", "moe_top_k"),
    "shared_expert_width": ("share_expert_dims", "share_expert_dim"),
    "expert_weights_scale": ("moe_router_scaling_factor",),
    "expert_weights_normalised": ("norm_expert_weight",),
    "expert_scoring": ("moe_router_activation",),
}
"""Keys of the experts, by canonical name; the last one counts."""


def _rotation(config: Config, windowed: list[bool]) -> Config:
    """The rotation of both kinds of layers. Scalings are for layers without a window."""
    kinds = config.get("yarn_only_types")
    if kinds not in (None, [], ["full_attention"]):
        raise _refused("yarn_only_types", kinds, ["full_attention"])
    rotated = config.get("use_rope_layers")
    if isinstance(rotated, list) and not all(rotated[: len(windowed)]):
        raise _refused("use_rope_layers", rotated, "all layers")
    found: dict[str, object] = {}
    for within in (False, True):
        base = _of_kind(config, "rope_theta", windowed, within)
        share = _of_kind(config, "partial_rotary_factors", windowed, within)
        parameters = config.get("rope_parameters")
        kind = "sliding_attention" if within else "full_attention"
        own = parameters.get(kind) if isinstance(parameters, dict) else None
        if isinstance(own, dict):
            base = own.get("rope_theta", base)
            share = own.get("partial_rotary_factor", share)
        if base is not None:
            found["rope.local_base" if within else "rope.base"] = base
        size = config.get("head_dim")
        if isinstance(share, float | int) and isinstance(size, int):
            name = "rope.local_dim" if within else "rope.dim"
            found[name] = scaled("partial_rotary_factors", share, size)
    return found


def _of_kind(config: Config, key: str, windowed: list[bool], within: bool) -> object:
    """The value of all layers of one kind, of which a list has one for each layer.

    Raises:
        UnsupportedModelError: the layers of a kind differ.
    """
    value = config.get(key)
    if not isinstance(value, list):
        return value
    of_kind = [one for one, kind in zip(value, windowed, strict=False) if kind is within]
    if any(one != of_kind[0] for one in of_kind):
        raise _refused(key, value, "one value for all layers of a kind")
    return of_kind[0] if of_kind else None


def _refused(key: str, value: object, supported: object) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"config.json: {key} {value!r} is not supported; supported: {supported}", param=key
    )


_PARTS = ("gate", "up", "down")
FAMILY = Family(
    build=build,
    gguf={
        "step35": GGUFNames(
            hyperparameters={
                "expert_limit": "swiglu_clamp_exp",
                "mlp_limit": "swiglu_clamp_shexp",
            },
            layer={"attention.gate": "attn_gate"},
            read=_read_metadata,
        )
    },
    hf={
        "step3p5": FolderNames(
            hyperparameters={
                "expert_limit": "swiglu_limits",
                "mlp_limit": "swiglu_limits_shared",
            },
            layer={
                "attention.gate": "self_attn.g_proj",
                "mlp.router": "moe.gate",
                **{f"mlp.experts.{part}": f"moe.{part}_proj" for part in _PARTS},
                **{f"mlp.shared.{part}": f"share_expert.{part}_proj" for part in _PARTS},
            },
            tensors={"mlp.selection_bias.weight": "moe.router_bias"},
            aliases={  # of experts in FP8
                f"moe.experts.*.{part}_proj.weight": f"mlp.experts.{part}.weight" for part in _PARTS
            },
            norms_without_one=True,
            with_images=("step3p7",),
            read=_read_config,
        ),
    },
)
