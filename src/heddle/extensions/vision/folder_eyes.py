"""Eyes in Hugging Face folders, where the text model has the other tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.eyes import EyesCheckpoint, EyesHyperparameters
from heddle.extensions.vision.naming import Names, origins
from heddle.weights.checkpoint import TensorInfo
from heddle.weights.huggingface.checkpoint import CONFIG
from heddle.weights.huggingface.json_files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

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
_KEYS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "heads": "num_attention_heads",
    "norm_eps": "layer_norm_eps",
    "patch": "patch_size",
    "image_size": "image_size",
    "activation": "hidden_act",
}
"""Keys of `vision_config`, by canonical name."""


class FolderSource:
    """See :class:`heddle.extensions.vision.eyes.Source`."""

    format = "hf"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEyes:
    """A kind of eyes in folders.

    Attributes:
        names: names of tensors; `@` stands for the encoder, `%` for the projection.
        encoders: what names of the encoder's tensors may begin with.
        projections: what names of the projection's tensors may begin with.
        keys: keys of `vision_config` beside or in place of the usual ones, by canonical name.
        values: values that config.json may leave out, which are those of `transformers`.
        read: further hyperparameters from the whole config.json and its `vision_config`.
    """

    names: Names
    encoders: tuple[str, ...]
    projections: tuple[str, ...]
    keys: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    read: Callable[[Config, Config], Mapping[str, object]] = lambda whole, vision: {}


_SIGLIP_LAYER = {
    "attention_norm": "layer_norm1",
    **{f"attention.{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v")},
    "attention.output": "self_attn.out_proj",
    "mlp_norm": "layer_norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
_IDEFICS3 = FolderEyes(
    names=Names(
        outside={
            "patches": "@embeddings.patch_embedding",
            "positions": "@embeddings.position_embedding",
            "output_norm": "@post_layernorm",
            "projection.matrix": "%modality_projection.proj",
        },
        prefix="@encoder.layers.",
        layer=_SIGLIP_LAYER,
    ),
    encoders=("model.vision_model.",),
    projections=("model.connector.",),
    values={
        **{"layers": 12, "width": 1152, "mlp_width": 3072, "heads": 16, "norm_eps": 1e-6},
        **{"image_size": 224, "patch": 32, "activation": "gelu_pytorch_tanh"},
    },
    read=lambda whole, vision: {"merge": whole.get("scale_factor", 2)},
)

KINDS = {"idefics3": _IDEFICS3, "smolvlm": _IDEFICS3}
"""Kinds of eyes by the value of `model_type` at the top of config.json."""
_NAMES = {"smolvlm": "idefics3"}
"""Names of kinds that have another name than their `model_type`."""


def folder_eyes(checkpoint: HuggingFaceCheckpoint) -> EyesCheckpoint | None:
    """The eyes of a folder; None if it has none, or if their kind is not supported.

    Raises:
        ModelFileError: values or tensors are missing, or contradict one another.
        UnsupportedModelError: a value is not supported.
    """
    whole = read_json(checkpoint.path / CONFIG)
    model, vision = whole.get("model_type"), whole.get("vision_config")
    kind = KINDS.get(model) if isinstance(model, str) else None
    if kind is None or not isinstance(vision, dict):
        return None
    source = FolderSource(checkpoint)
    found = _beginning(kind.encoders, source.labels)
    if found is None:  # as in copies of the text model alone
        return None
    begins = {"@": found, "%": _beginning(kind.projections, source.labels) or ""}
    values = _values(kind, whole, vision)
    values["text_width"] = checkpoint.hyperparameters.get("width")

    def label(name: str) -> str:
        return f"vision_config.{({**_KEYS, **kind.keys}).get(name, name)}"

    longest = max((max(one, default=1) for one in source.labels.values()), default=1)
    most = {"layers": len(source.labels), **dict.fromkeys(("width", "mlp_width"), longest)}
    most |= {"heads": longest, "text_width": longest}
    read = EyesHyperparameters(values, label, most)
    table = {
        name: begins.get(stored[0], stored[0]) + stored[1:]
        for name, stored in kind.names.table(read.integer("layers")).items()
    }
    made = origins(table, source.labels)
    return EyesCheckpoint(
        _NAMES.get(str(model), str(model)),
        source,
        read,
        made,
        lambda name: table.get(name, name),
    )


def _beginning(candidates: tuple[str, ...], labels: Mapping[str, object]) -> str | None:
    """The first of the candidates that a tensor's name begins with."""
    for one in candidates:
        if any(label.startswith(one) for label in labels):
            return one
    return None


def _values(kind: FolderEyes, whole: Config, vision: Config) -> dict[str, object]:
    keys = {**_KEYS, **kind.keys}
    values = dict(kind.values)
    values |= {name: vision[key] for name, key in keys.items() if vision.get(key) is not None}
    values |= kind.read(whole, vision)
    for name in ("image_size", "patch"):
        values[name] = _side(keys[name], values.get(name))
    for name in ("activation", "projection_activation"):
        if name in values:
            values[name] = _activation(name, values[name])
    return {name: value for name, value in values.items() if value is not None}


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
