"""What files of encoders have in common: classes, segments, the norms' epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heddle.weights.huggingface.json_files import Config

ACTIVATIONS = {"gelu": "gelu_erf", "relu": "relu"}
"""Activations of `transformers` that have another name here, or none in other architectures."""

GGUF_KEYS = {
    "norm_eps": "attention.layer_norm_epsilon",
    "labels": "classifier.output_labels",
}
GGUF_VALUES: dict[str, object] = {"causal": False}
GGUF_OUTSIDE = {
    "positions": "position_embd",
    "segments": "token_types",
    "embedding_norm": "token_embd_norm",
    "pooler": "cls",
    "pooler_norm": "cls.norm",
    "classifier": "cls.output",
}
GGUF_LAYER = {"post_attention_norm": "attn_output_norm", "post_mlp_norm": "layer_output_norm"}
"""llama.cpp's names (`gguf-py/gguf/constants.py`)."""


def read_gguf(values: dict[str, Any], metadata: Mapping[str, object]) -> None:
    """Let a model that ranks documents be a classifier, of one class if the file names none."""
    if values.get("pooling") == "rank":
        values.setdefault("labels", ["LABEL_0"])
    if "labels" in values and not isinstance(values["labels"], str):
        values["labels"] = [str(label) for label in values["labels"]]


_MOST_LAYERS, _MOST_LABELS = 2**12, 2**16
"""No encoder has so many. A file of 400 bytes may claim any number."""


def by_layer(layers: object, flag: Callable[[int], bool]) -> list[bool]:
    """A flag of each layer; none of a wrong number of layers, which has its own error later."""
    if not isinstance(layers, int) or layers > _MOST_LAYERS:
        return []
    return [flag(layer) for layer in range(layers)]


def layers_with_experts(layers: object, every: object) -> dict[str, object]:
    """The second of every so many layers has experts (llama.cpp, `src/models/bert.cpp`)."""
    if not isinstance(every, int) or every < 1:
        return {}
    return {"expert_layers": by_layer(layers, lambda layer: layer % every == 1)}


def check_values(config: Config, supported: Mapping[str, tuple[object, ...]]) -> None:
    """Check keys whose other values change the forward pass. The first value is the default.

    Raises:
        UnsupportedModelError: a key has a value that is not among the supported ones.
    """
    for key, values in supported.items():
        value = config.get(key, values[0])
        if value not in values:
            raise UnsupportedModelError(
                f"config.json: {key} {value!r} is not supported; supported:"
                f" {', '.join(map(str, values))}",
                param=key,
            )


def read_labels(config: Config) -> dict[str, object]:
    """The classes of a sequence classifier, if config.json describes one.

    It has `num_labels` or names in `id2label`; without both, `transformers` makes two classes.

    Raises:
        ModelFileError: `num_labels` is no number of classes.
    """
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    if not str(named).endswith("ForSequenceClassification"):
        return {}
    names = config.get("id2label")
    if not isinstance(names, dict) or not names:
        count = config.get("num_labels", 2)
        if not isinstance(count, int) or not 1 <= count <= _MOST_LABELS:
            raise ModelFileError(
                f"num_labels must be 1 to {_MOST_LABELS}, got {count!r}; fetch the file again",
                field="num_labels",
            )
        names = {str(i): f"LABEL_{i}" for i in range(count)}
    return {"labels": [str(names.get(str(i), f"LABEL_{i}")) for i in range(len(names))]}
