"""MiMo V2 Flash: values narrower than keys, sinks in layers with a window, and experts.

Layers with a window have more KV heads and a rope base of their own. Values have a factor. Experts
are scored by sigmoids and chosen with a bias.

Xiaomi 2025 (https://huggingface.co/XiaomiMiMo/MiMo-V2-Flash); `transformers`, `mimo_v2_flash`;
llama.cpp, `conversion/mimo.py` and `mimo2.cpp`. By `transformers`, a token sees
`sliding_window_size` tokens before it; by llama.cpp one fewer. Folders follow the first, GGUF files
the second. GGUF files of MiMo V2.5 have the same architecture, with queries, keys and values in one
matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.extensions.uneven.layers import (
    decoder_of,
    experts_of,
    read_attentions,
    without_heads_for_further_tokens,
)
from heddle.models.family import Family
from heddle.weights.gguf.names import GGUFNames
from heddle.weights.huggingface.names import FolderNames
from heddle.weights.huggingface.values import by_kind, scaled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.models.decoder import Decoder
    from heddle.weights.huggingface.json_files import Config
    from heddle.weights.hyperparameters import Hyperparameters

_PERIOD = 6
"""Number of layers after which one sees all positions, if config.json does not list them."""
_ROTATED_SHARE = 0.334


def build(hyperparameters: Hyperparameters, context: int) -> Decoder:
    """The decoder with these hyperparameters.

    Raises:
        ModelFileError: a hyperparameter is missing or contradicts another.
        UnsupportedModelError: values are wider than keys.
    """
    read = hyperparameters
    return decoder_of(read, read_attentions(read, context), experts_of(read))


def _read_metadata(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    without_heads_for_further_tokens(values)
    values["rope.local_dim"] = values.get("rope.dim")


def _read_config(config: Config) -> Config:
    """Values under the keys of `transformers`, or under those of the published folder."""
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int):
        return {}
    windowed = _windowed(config, layers)
    found: dict[str, object] = {"window_layers": windowed}
    window = config.get("sliding_window_size")
    if isinstance(window, int):
        found["window"] = window + 1
    for name, key in _SIZES.items():
        whole = config.get(key)
        within = config.get(f"swa_{key}", whole)
        if name == "kv_heads" and f"swa_{key}" not in config and isinstance(whole, int):
            within = 2 * whole
        found[name] = [within if one else whole for one in windowed]
    if config.get("scoring_func") is not None:
        found["expert_scoring"] = config["scoring_func"]
    return found | _rotation(config)


_SIZES = {
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "key_dim": "head_dim",
    "value_dim": "v_head_dim",
}
"""Keys of sizes, by canonical name. With `swa_` before it, a key is of layers with a window."""


def _windowed(config: Config, layers: int) -> list[bool]:
    kinds, pattern = config.get("layer_types"), config.get("hybrid_layer_pattern")
    if isinstance(kinds, list):
        meanings = {"sliding_attention": True, "full_attention": False}
        return by_kind("layer_types", kinds, meanings)
    if isinstance(pattern, list):
        return [bool(one) for one in pattern]
    return [layer > 0 and (layer + 1) % _PERIOD > 0 for layer in range(layers)]


def _rotation(config: Config) -> Config:
    found: dict[str, object] = {}
    if config.get("layernorm_epsilon") is not None:
        found["norm_eps"] = config["layernorm_epsilon"]
    if config.get("swa_rope_theta") is not None:
        found["rope.local_base"] = config["swa_rope_theta"]
    kinds = config.get("rope_parameters")
    local = kinds.get("sliding_attention") if isinstance(kinds, dict) else None
    own = local.get("partial_rotary_factor") if isinstance(local, dict) else None
    share = config.get("partial_rotary_factor", _ROTATED_SHARE) if own is None else own
    size = config.get("swa_head_dim", config.get("head_dim"))
    if isinstance(share, float | int) and isinstance(size, int):
        found["rope.local_dim"] = scaled("partial_rotary_factor", share, size)
    return found


FAMILY = Family(
    build=build,
    gguf={
        "mimo2": GGUFNames(
            hyperparameters={"attention.value_scale": "attention.value_scale"},
            layer={"attention.sinks": "attn_sinks"},
            read=_read_metadata,
        )
    },
    hf={
        "mimo_v2_flash": FolderNames(
            hyperparameters={"attention.value_scale": "attention_value_scale"},
            tensors={"attention.sinks.weight": "self_attn.attention_sink_bias"},
            aliases={"self_attn.sinks": "attention.sinks.weight"},
            rotated_share=_ROTATED_SHARE,
            read=_read_config,
        ),
    },
)
