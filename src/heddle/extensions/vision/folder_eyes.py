"""Eyes in Hugging Face folders, where the text model has the other tensors."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.eyes import EyesCheckpoint, EyesHyperparameters, check_fits
from heddle.extensions.vision.folder_kinds import KEYS, KINDS
from heddle.extensions.vision.naming import origins
from heddle.weights.checkpoint import TensorInfo
from heddle.weights.huggingface.checkpoint import CONFIG
from heddle.weights.huggingface.json_files import read_json
from heddle.weights.hyperparameters import Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.folder_kinds import FolderEyes
    from heddle.weights.files import FileStamp
    from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
    from heddle.weights.huggingface.json_files import Config

_ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu": "gelu_erf",
    "quick_gelu": "gelu_quick",
    "silu": "silu",
}


class FolderSource:
    """See :class:`heddle.extensions.vision.eyes.Source`."""

    format = "hf"
    metadata: Mapping[str, object] = MappingProxyType({})

    def __init__(self, checkpoint: HuggingFaceCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._stored = checkpoint.stored
        self.path: Path = checkpoint.path
        self.labels = {label: one.shape for label, one in self._stored.tensors.items()}

    @property
    def stamps(self) -> Mapping[Path, FileStamp]:
        return self._checkpoint.stamps

    def info(self, label: str) -> TensorInfo:
        one = self._stored[label]
        return TensorInfo(label, one.shape, one.type, one.nbytes, label, one.place)

    def read(self, label: str, start: int, size: int) -> NDArray[np.uint8]:
        return self._stored.read(label, start, size)

    def check_unchanged(self) -> None:
        self._checkpoint.check_unchanged()

    def close(self) -> None:
        pass  # the text model reads the same files


def folder_eyes(checkpoint: HuggingFaceCheckpoint) -> EyesCheckpoint | None:
    """The eyes of a folder; None if it has none, or if their kind is not supported.

    Raises:
        ModelFileError: values or tensors are missing, or contradict one another.
        UnsupportedModelError: a value is not supported.
    """
    whole = read_json(checkpoint.path / CONFIG)
    vision = whole.get("vision_config")
    if not isinstance(vision, dict):
        return None
    model, of_vision = str(whole.get("model_type")), str(vision.get("model_type"))
    kind = KINDS.get((model, "")) or KINDS.get((model, of_vision))
    source = FolderSource(checkpoint)
    begin = None if kind is None else _beginning(kind.encoders, source.labels)
    if kind is None or begin is None:  # there are copies of text models alone
        return None
    text_width = checkpoint.hyperparameters.integer("width")
    read = _read(kind, whole, vision, source.labels, text_width)
    begins = {"@": begin, "%": _beginning(kind.projections, source.labels) or ""}
    begins["&"] = "model." if begin.startswith("model.") else ""
    layers, stacked = read.integer("layers"), read.get("deepstack_layers")
    count = len(stacked) if isinstance(stacked, list) else 0
    table = {
        name: begins[stored[0]] + stored[1:]
        for name, stored in kind.names.table(layers, range(count)).items()
    }
    found = origins(kind.names, table, source.labels)
    eyes = EyesCheckpoint(kind.kind, source, read, found, lambda name: table.get(name, name))
    check_fits(eyes, checkpoint)
    return eyes


def _beginning(candidates: tuple[str, ...], labels: Mapping[str, object]) -> str | None:
    """The first of the candidates that a tensor's name begins with."""
    for one in candidates:
        if any(label.startswith(one) for label in labels):
            return one
    return None


def _read(
    kind: FolderEyes,
    whole: Config,
    vision: Config,
    labels: Mapping[str, tuple[int, ...]],
    text_width: int,
) -> EyesHyperparameters:
    keys = {**KEYS, **kind.keys}
    values = dict(kind.values)
    values |= {name: vision[key] for name, key in keys.items() if vision.get(key) is not None}
    values |= kind.read(whole, vision)
    values["text_width"] = text_width
    for name in ("image_size", "patch"):
        values[name] = _side(keys[name], values.get(name))
    for name in ("activation", "projection_activation"):
        if name in values:
            values[name] = _activation(name, values[name])
    values = {name: value for name, value in values.items() if value is not None}
    return EyesHyperparameters(
        values, lambda name: f"vision_config.{keys.get(name, name)}", Bounds.of(labels.values())
    )


def _side(key: str, value: object) -> object:
    """The side of a square; some files have both sides."""
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return value[0]
    if isinstance(value, list):
        raise ModelFileError(f"vision_config.{key} must be a square, got {value!r}", field=key)
    return value


def _activation(name: str, value: object) -> str:
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json: {name} {value!r} of the eyes is not supported; supported:"
            f" {', '.join(_ACTIVATIONS)}",
            param=name,
        )
    return _ACTIVATIONS[value]
