"""Sizes that differ between the layers of Gemma 4, from its config.json.

Layers that see all positions have heads of their own size and number. config.json has either keys
for both kinds of layers, or `per_layer_config`, which `transformers` writes since 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


_WINDOWED, _WHOLE = "sliding_attention", "full_attention"
_PERIOD = 6
"""Number of layers after which one layer sees all positions, if config.json lists no kinds."""
_GLOBAL_DIM, _INPUT_WIDTH = 512, 256
"""Defaults of `transformers`."""


def layer_sizes(config: Config) -> dict[str, object]:
    """Hyperparameters that are lists by layer, and those whose default is not zero.

    Raises:
        ModelFileError: the number of layers is missing, or `per_layer_config` is no object.
    """
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        raise ModelFileError(
            f"num_hidden_layers must be a positive whole number, got {layers!r}",
            field="num_hidden_layers",
        )
    found: dict[str, object] = {}
    kinds = _kinds(config, layers)
    if len(kinds) == layers:
        found["window_layers"] = [kind != _WHOLE for kind in kinds]
    overrides = _overrides(config, layers, kinds)
    for name, key in (("kv_heads", "num_key_value_heads"), ("key_dim", "head_dim")):
        found[name] = [one.get(key, config.get(key)) for one in overrides]
    width, shared = config.get("intermediate_size"), config.get("num_kv_shared_layers") or 0
    if config.get("use_double_wide_mlp") and isinstance(width, int) and isinstance(shared, int):
        found["mlp_width"] = [width] * (layers - shared) + [2 * width] * shared
    if config.get("hidden_size_per_layer_input") is None:
        key = "hidden_size_per_layer_input"
        found["layer_input_width"] = 0 if key in config else _INPUT_WIDTH
    return found


def _kinds(config: Config, layers: int) -> list[object]:
    """The kind of each layer. As in `transformers`, the last layer sees all positions."""
    given = config.get("layer_types")
    if not isinstance(given, list):
        given = [_WINDOWED if (layer + 1) % _PERIOD else _WHOLE for layer in range(layers)]
    return [*given[:-1], _WHOLE]


def _overrides(config: Config, layers: int, kinds: list[object]) -> list[Config]:
    """The keys of each layer that differ from those of config.json."""
    given = config.get("per_layer_config")
    if given is not None:
        if not isinstance(given, dict) or not all(isinstance(o, dict) for o in given.values()):
            raise ModelFileError(
                f"per_layer_config must be an object of objects, got {given!r}",
                field="per_layer_config",
            )
        return [given.get(str(layer), {}) for layer in range(layers)]
    whole: dict[str, Any] = {"head_dim": config.get("global_head_dim") or _GLOBAL_DIM}
    heads = config.get("num_global_key_value_heads")
    if heads is not None and config.get("attention_k_eq_v"):
        whole["num_key_value_heads"] = heads
    return [whole if kind == _WHOLE else {} for kind in kinds]
