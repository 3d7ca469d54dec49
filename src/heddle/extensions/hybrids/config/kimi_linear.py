"""Readers of the keys of config.json that only Kimi Linear has.

Moonshot AI writes an object, `linear_attn_config`; `transformers` (`KimiLinearConfig`) defines keys
in place of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import ModelFileError
from heddle.extensions.deepseek.config import attention_sizes, check, layers_with_experts
from heddle.weights.huggingface.values import numbers_in

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

_LINEAR = "linear_attn_config"
_SIZES = {
    "state.heads": ("num_heads", "linear_num_heads"),
    "state.key_dim": ("head_dim", "linear_head_dim"),
    "state.taps": ("short_conv_kernel_size", "linear_conv_kernel_dim"),
}
"""Canonical names, and their keys in the object and beside it."""


def sizes(config: Config) -> dict[str, object]:
    """Hyperparameters of both kinds of attention and of routing, under canonical names.

    Raises:
        ModelFileError: a value has the wrong type.
        UnsupportedModelError: a value that no canonical name can express.
    """
    check(config, "mla_use_nope", (None, True))
    check(config, "moe_router_activation_func", (None, "sigmoid"))
    check(config, "moe_layer_freq", (None, 1))
    if config.get("num_expert_group") not in (None, 1):
        check(config, "use_grouped_topk", (None, True))
    linear = config.get(_LINEAR) or {}
    if not isinstance(linear, dict):
        raise ModelFileError(f"{_LINEAR} must be an object, got {linear!r}", field=_LINEAR)
    found = attention_sizes(config) | {"expert_scoring": "sigmoid"}
    for name, (own, beside) in _SIZES.items():
        value = linear.get(own, config.get(beside))
        if value is not None:
            found[name] = value
    renormalised = config.get("moe_renormalize", config.get("norm_topk_prob"))
    found["expert_weights_normalised"] = True if renormalised is None else renormalised
    attention, layers = linear.get("full_attn_layers"), config.get("num_hidden_layers")
    if isinstance(attention, list) and isinstance(layers, int):
        with_attention = numbers_in(attention)
        found["recurrent_layers"] = [layer + 1 not in with_attention for layer in range(layers)]
    return found | layers_with_experts(config)
