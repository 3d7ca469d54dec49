"""Sizes of LFM2 that its config.json has in forms of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import ModelFileError
from heddle.weights.huggingface.values import numbers_in, scaled

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


def sizes(config: Config) -> dict[str, object]:
    """The width of feed-forward layers, and layers with attention in the form of older files.

    Raises:
        ModelFileError: a value has the wrong type.
    """
    found: dict[str, object] = {}
    if config.get("model_type") == "lfm2":
        found["mlp_width"] = _mlp_width(config)
    attention, layers = config.get("full_attn_idxs"), config.get("num_hidden_layers")
    if config.get("layer_types") is None and isinstance(attention, list) and type(layers) is int:
        with_attention = numbers_in(attention)
        found["recurrent_layers"] = [layer not in with_attention for layer in range(layers)]
    return found


def _mlp_width(config: Config) -> int:
    """Two thirds of the stated width, times a factor, rounded up (`transformers`, `Lfm2MLP`)."""
    width = _whole(config, "block_ff_dim", _whole(config, "intermediate_size", 12_288))
    adjusts, factor = (
        config.get("block_auto_adjust_ff_dim", True),
        config.get("block_ffn_dim_multiplier", 1.0),
    )
    if not adjusts:
        return width
    width = int(2 * width / 3)
    if factor is None:
        return width
    if not isinstance(factor, float | int):
        raise ModelFileError(
            f"block_ffn_dim_multiplier must be a number, got {factor!r}",
            field="block_ffn_dim_multiplier",
        )
    multiple = _whole(config, "block_multiple_of", 256)
    return -(-scaled("block_ffn_dim_multiplier", factor, width) // multiple) * multiple


def _whole(config: Config, key: str, default: int) -> int:
    value = config.get(key, default)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise ModelFileError(f"{key} must be a positive whole number, got {value!r}", field=key)
    return value
