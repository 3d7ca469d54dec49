"""Readers of the keys of config.json that only Nemotron-H has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.extensions.hybrids.config.mixers import check_mixer, product

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


_PARTS = {
    "linear_attention": "recurrence",
    "mamba": "recurrence",
    "M": "recurrence",
    "full_attention": "attention",
    "attention": "attention",
    "*": "attention",
    "mlp": "mlp",
    "-": "mlp",
    "moe": "mlp",
    "E": "mlp",
}
"""The part of a layer, by its name in a list, or its letter in a pattern."""
_EXPERTS = ("moe", "E")


def sizes(config: Config) -> dict[str, object]:
    """The part of each layer, the heads of attention, and the width of the recurrence.

    `time_step_min` is not used. It is for training; `transformers` 5 limits steps by it, but
    NVIDIA's own code and llama.cpp do not.

    Raises:
        UnsupportedModelError: a layer, or the recurrence, has a form that is not supported.
    """
    check_mixer(config, "mamba_hidden_act")
    key = "layers_block_type"
    if config.get(key) is None:
        key = "hybrid_override_pattern"
    listed = config.get(key)
    kinds = list(listed) if isinstance(listed, list | str) else []
    wrong = next((kind for kind in kinds if str(kind) not in _PARTS), None)
    if wrong is not None or not kinds:
        raise UnsupportedModelError(
            f"config.json: {key} {wrong or listed!r} is not supported; supported: a list or text of"
            f" {', '.join(_PARTS)}",
            param=key,
        )
    has_experts = [kind in _EXPERTS for kind in kinds]
    found: dict[str, object] = {
        "layers": len(kinds),
        "layer_parts": [_PARTS[kind] for kind in kinds],
        "expert_layers": has_experts,
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        # Older files call it attention_head_dim.
        "key_dim": config.get("head_dim", config.get("attention_head_dim", 128)),
    }
    if not any(has_experts):
        found["experts"] = 0  # the keys are there in dense models, too
    inner = product(config, "mamba_num_heads", "mamba_head_dim")
    return found if inner is None else found | {"state.inner": inner}
