"""Reads a GGUF file's metadata: a model's hyperparameters under canonical names."""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.weights.gguf import names
from heddle.weights.hyperparameters import Bounds, Hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY_FILE = Bounds(tensors=1 << 16, longest=1 << 62)
"""Bounds of an outline, and of a file of a vocabulary, which has no tensors. Lists by layer are
made of both; from a file without tensors no model is."""

POOLING = {1: "mean", 2: "cls", 3: "last", 4: "rank"}
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
    own = names.names_of(architecture)
    known = {**names.HYPERPARAMETERS, **own.hyperparameters}

    def label(name: str) -> str:
        return f"{architecture}.{known.get(name, name)}"

    tokens = metadata.get(names.TOKENS)
    of_tokens = {name: metadata[key] for name, key in names.OF_TOKENIZER.items() if key in metadata}
    kept = (f"{architecture}.", own.plain or f"{architecture}.")
    metadata = {key: _plain(metadata[key]) for key in metadata if key.startswith(kept)}
    values: dict[str, Any] = {"rope.interleaved": False, "causal": True, **of_tokens, **own.values}
    values |= {name: metadata[label(name)] for name in known if label(name) in metadata}
    for name in _OFF_IF_ZERO:
        if values.get(name) == 0:
            del values[name]
    if isinstance(tokens, Sized):
        values.setdefault("vocabulary", len(tokens))
    pooling = values.pop("pooling", None)
    if isinstance(pooling, int) and pooling:
        values["pooling"] = POOLING.get(pooling, pooling)
    scoring = values.get("expert_scoring")
    if isinstance(scoring, int):
        values["expert_scoring"] = SCORINGS.get(scoring, scoring)
    layers = values.get("layers")
    metadata = {key.removeprefix(kept[0]): value for key, value in metadata.items()}
    further = metadata.get(names.PREDICTION_LAYERS)
    if isinstance(further, int) and isinstance(layers, int):
        values["layers"], values["prediction_layers"] = layers - further, further
    bounds.check("layers", values.get("layers"), label("layers"))  # lists by layer follow
    own.read(values, metadata)
    _read_windows(values)
    _read_layers(values, metadata)
    _read_rope(values, metadata)
    return Hyperparameters(values, label, bounds)


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _read_windows(values: dict[str, Any]) -> None:
    """The layers that attend to a window, if the key has a flag for each and no period."""
    if isinstance(values.get("window_period"), list):
        values["window_layers"] = values.pop("window_period")


def _read_layers(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Sizes that differ between layers, as lists. A list of equal numbers becomes that number."""
    windowed = values.get("window_layers")
    for name, key in names.WINDOWED.items():
        size, whole = metadata.get(key), values.get(name)
        if size is not None and isinstance(windowed, list):
            values[name] = [size if one else whole for one in windowed]
    for name in ("kv_heads", "key_dim", "value_dim", "mlp_width"):
        listed = values.get(name)
        if isinstance(listed, list) and len(listed) == values.get("layers") != 0:
            values[name] = listed[0] if listed.count(listed[0]) == len(listed) else listed


def _read_rope(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """The factor of yarn, which has another form than the canonical one."""
    multiplier, factor = metadata.get(names.YARN_LOG_MULTIPLIER), values.get("rope.factor")
    if "rope.score_factor" in values:  # the architecture's own form is read already
        return
    if isinstance(multiplier, float) and isinstance(factor, float | int) and factor > 1:
        scale, growth = values.get("rope.attention_factor", 1.0), 0.1 * math.log(factor)
        values["rope.attention_factor"] = scale / (multiplier * growth + 1.0)
