"""Laguna: gates of attention with softplus, and experts.

Layers with a window have more query heads and a rotation of their own; the larger model has no such
layers. Heads or elements have gates. Experts are scored by sigmoids and chosen with a bias.

Poolside 2026 (https://huggingface.co/poolside/Laguna-XS.2); `transformers`, `laguna`; llama.cpp,
`conversion/laguna.py` and `laguna.cpp`. GGUF files do not say which gates they have: llama.cpp
knows it by the shape of a tensor. Here it follows from there being a window, as in the published
models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.errors import UnsupportedModelError
from heddle.extensions.uneven.layers import decoder_of, experts_of, read_attentions
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames
from heddle.weights.huggingface.values import scaled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_PERIOD = 4
_OF_HEADS, _OF_ELEMENTS = "per-head", "per-element"
_ROPE = {
    "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
}
"""Rotations by kind of layer, if config.json does not say (`transformers`)."""


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: the gates are of an unknown kind.
    """
    read = hyperparameters
    eps = read.number("norm_eps")
    kind = read.choice("attention.gates", (_OF_HEADS, _OF_ELEMENTS), _OF_HEADS)
    attentions = [
        replace(one, norm_eps=eps, gates=1 if kind == _OF_HEADS else one.value_dim, softplus=True)
        for one in read_attentions(read, context)
    ]
    return decoder_of(read, attentions, experts_of(read))


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    values.pop("dense_layers", None)  # the tensors say it
    layers, period = values.get("layers"), values.pop("window_period", _PERIOD)
    values["attention.gates"] = _OF_HEADS if "window" in values else _OF_ELEMENTS
    if "window" in values and isinstance(layers, int) and isinstance(period, int) and period > 0:
        values["window_layers"] = [layer % period > 0 for layer in range(layers)]


def _read_config(config: Config) -> Config:
    for key, supported in _UNSUPPORTED.items():
        if config.get(key) not in (None, supported):
            raise UnsupportedModelError(
                f"config.json: {key} {config[key]!r} is not supported; supported: {supported}",
                param=key,
            )
    gates = config.get("gating", True)
    found: dict[str, object] = {
        "attention.gates": _OF_HEADS if gates is True else gates,
        "heads": config.get("num_attention_heads_per_layer", config.get("num_attention_heads")),
        "window_layers": None,
    }
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        del found["window_layers"]
    if config.get("moe_routed_scaling_factor") is not None:
        found["expert_weights_scale"] = config["moe_routed_scaling_factor"]
    parameters = config.get("rope_parameters") or _ROPE
    if not isinstance(parameters, dict):
        return found
    for kind, prefix in (("full_attention", "rope."), ("sliding_attention", "rope.local_")):
        own, size = parameters.get(kind), config.get("head_dim")
        if not isinstance(own, dict):
            continue
        found[f"{prefix}base"] = own.get("rope_theta")
        share = own.get("partial_rotary_factor", 1.0)
        if isinstance(share, float | int) and isinstance(size, int):
            found[f"{prefix}dim"] = scaled("partial_rotary_factor", share, size)
    return found


_UNSUPPORTED = {"moe_apply_router_weight_on_input": False, "moe_router_logit_softcapping": 0.0}
"""The only values of these keys that Heddle knows."""

FAMILY = Family(
    build=build,
    gguf={"laguna": GGUFNames(layer={"attention.gate": "attn_gate"}, read=_read_metadata)},
    hf={
        "laguna": FolderNames(
            hyperparameters={"attention.gates": "gating"},
            layer={"attention.gate": "self_attn.g_proj"},
            tensors={"mlp.selection_bias.weight": "mlp.experts.e_score_correction_bias"},
            aliases={"mlp.gate.e_score_correction_bias": "mlp.selection_bias.weight"},
            read=_read_config,
        ),
    },
)
