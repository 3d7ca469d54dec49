"""Reads a GGUF file's metadata: a model's hyperparameters under canonical names."""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.weights.checkpoint import Bounds, Hyperparameters
from heddle.weights.gguf import names

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY_FILE = Bounds(tensors=1 << 16, longest=1 << 62)
"""Bounds of an outline, and of a file of a vocabulary, which has no tensors. Lists by layer are
made of both; from a file without tensors no model is."""

POOLING = {1: "mean", 2: "first", 3: "last", 4: "rank"}
"""Values of `pooling_type` (llama.cpp, `llama_pooling_type`). A value of 0 names no pooling."""

SCORINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}
"""Values of `expert_gating_func` (llama.cpp, `llama_expert_gating_func_type`)."""

_OFF_IF_ZERO = (
    "attention.scale",
    "attention.temperature",
    "embedding_scale",
    "residual_scale",
    "window",
)
"""Hyperparameters whose key may be there with a value of 0, as if it were not there."""


def hyperparameters_of(
    metadata: Mapping[str, object], architecture: str, bounds: Bounds
) -> Hyperparameters:
    """The hyperparameters in the metadata, under canonical names. Only counts are checked.

    Raises:
        ModelFileError: a count exceeds the bounds.
    """

    known = names.HYPERPARAMETERS | names.HYPERPARAMETERS_OF.get(architecture, {})

    def label(name: str) -> str:
        return f"{architecture}.{known.get(name, name)}"

    keys = {name: label(name) for name in known}
    tokens = metadata.get(names.TOKENS)
    metadata = {key: _plain(metadata[key]) for key in metadata if key.startswith(architecture)}
    values = {name: metadata[key] for name, key in keys.items() if key in metadata}
    for name in _OFF_IF_ZERO:
        if values.get(name) == 0:
            del values[name]
    values["rope.interleaved"] = architecture in names.INTERLEAVED
    values["state.tiled"] = architecture in names.TILED
    values["recurrence_beside"] = architecture in names.BESIDE
    values.setdefault("causal", architecture not in names.ENCODERS)
    if isinstance(tokens, Sized):
        values.setdefault("vocabulary", len(tokens))
    pooling = values.pop("pooling", None)
    if isinstance(pooling, int) and pooling:
        values["pooling"] = POOLING.get(pooling, pooling)
    scoring = values.get("expert_scoring")
    if isinstance(scoring, int):
        values["expert_scoring"] = SCORINGS.get(scoring, scoring)
    layers = values.get("layers")
    further = metadata.get(f"{architecture}.{names.PREDICTION_LAYERS}")
    if isinstance(further, int) and isinstance(layers, int):
        values["layers"], values["prediction_layers"] = layers - further, further
    bounds.check("layers", values.get("layers"), label("layers"))  # lists by layer follow
    if architecture in names.LATENT_ATTENTION:
        _read_latent(values, metadata, architecture)
    _read_windows(values, architecture)
    _read_layers(values, metadata, architecture)
    _read_rope(values, metadata, architecture)
    return Hyperparameters(values, label, bounds)


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _read_latent(values: dict[str, Any], metadata: Mapping[str, object], architecture: str) -> None:
    """Complete `values` of latent attention: keys with other names, and missing keys."""
    for name, key in names.LATENT.items():
        size = metadata.get(f"{architecture}.{key}")
        if size is not None:
            values[name] = size
    if architecture != names.DEEPSEEK:
        return
    if values.get("expert_scoring") in (None, 0):
        # Files from before the key are of DeepSeek-V2, or, with these sizes, of GLM-4.7-Flash.
        is_glm = values.get("layers") == 47 and values.get("vocabulary") == 154_880
        values["expert_scoring"] = "sigmoid" if is_glm else "softmax"
    values.setdefault("expert_weights_normalised", False)
    values["expert_group_best"] = 1 if values["expert_scoring"] == "softmax" else 2


def _read_windows(values: dict[str, Any], architecture: str) -> None:
    """Which layers attend to a window: a flag for each, or a period."""
    pattern, layers = values.get("window_period"), values.get("layers")
    if isinstance(pattern, list):
        values["window_layers"] = values.pop("window_period")
    elif architecture in names.WINDOW_IN_ALL_LAYERS and isinstance(layers, int):
        values["window_layers"] = ["window" in values] * layers


def _read_layers(values: dict[str, Any], metadata: Mapping[str, object], architecture: str) -> None:
    """Sizes that differ between layers, as lists. A list of equal numbers becomes that number."""
    windowed = values.get("window_layers")
    for name, key in names.WINDOWED.items():
        size, whole = metadata.get(f"{architecture}.{key}"), values.get(name)
        if size is not None and isinstance(windowed, list):
            values[name] = [size if one else whole for one in windowed]
    if architecture in names.ONE_PART:
        _read_parts(values)
    if architecture in names.RECURRENT and isinstance(values.get("layers"), int):
        values["recurrent_layers"] = [True] * values["layers"]
    kv_heads = values.get("kv_heads")
    if isinstance(kv_heads, list) and architecture in names.RECURRENT_IF_NO_HEADS:
        values["recurrent_layers"] = [not count for count in kv_heads]
        most = max(kv_heads, default=0)
        values["kv_heads"] = [count or most for count in kv_heads]
    for name in ("kv_heads", "key_dim", "value_dim", "mlp_width"):
        listed = values.get(name)
        if isinstance(listed, list) and len(listed) == values.get("layers") != 0:
            values[name] = listed[0] if listed.count(listed[0]) == len(listed) else listed


def _read_parts(values: dict[str, Any]) -> None:
    """The part of each layer, where layers have one part. Layers of a prediction head come last."""
    layers, widths = values.get("layers"), values.get("mlp_width")
    kv_heads = values.get("kv_heads")
    if not (isinstance(layers, int) and isinstance(widths, list) and isinstance(kv_heads, list)):
        return
    kinds = zip(widths[:layers], kv_heads[:layers], strict=False)
    values["layer_parts"] = [
        "mlp" if width else "attention" if heads else "recurrence" for width, heads in kinds
    ]
    values["mlp_width"], values["kv_heads"] = max(widths, default=0), max(kv_heads, default=0)


def _read_rope(values: dict[str, Any], metadata: Mapping[str, object], architecture: str) -> None:
    """Scalings that no key names, or whose factor has another form than the canonical one."""
    if architecture == "phi3" and "rope.attention_factor" in values:
        # The divisors are tensors, and no key says that they are there.
        values.setdefault("rope.scaling", "longrope")
    if architecture in names.YARN_BETWEEN_PAIRS:  # its config.json has `truncate` false
        values["rope.whole_pairs"] = False
    multiplier = metadata.get(f"{architecture}.{names.YARN_LOG_MULTIPLIER}")
    factor = values.get("rope.factor")
    if isinstance(multiplier, float) and isinstance(factor, float | int) and factor > 1:
        scale, growth = values.get("rope.attention_factor", 1.0), 0.1 * math.log(factor)
        if architecture == names.DEEPSEEK:  # its multiplier is a tenth of `mscale_all_dim`
            values["rope.attention_factor"] = scale / (growth + 1.0)
            values["rope.score_factor"] = (10 * multiplier * growth + 1.0) ** 2
        else:
            values["rope.attention_factor"] = scale / (multiplier * growth + 1.0)
    is_off = metadata.get(f"{architecture}.{names.ROPE_FINETUNED}") is False
    if is_off and architecture in names.WITHOUT_ROPE_UNLESS_FINETUNED:
        values["rope.layer_period"] = 1
