"""Reads what a GGUF file says about itself, also if Heddle cannot run the model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.weights.checkpoint import Outline
from heddle.weights.gguf import names
from heddle.weights.gguf.checkpoint import hyperparameters_of
from heddle.weights.gguf.file import GGUFFile, StringArray

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHOWN_ELEMENTS = 8


def read_outline(path: Path) -> Outline:
    """The outline of the file at `path`.

    Raises:
        ModelSourceError, ModelFileError, UnsupportedModelError: as :meth:`GGUFFile.open`.
    """
    with GGUFFile.open(path) as file:
        architecture = _string(file.metadata, names.ARCHITECTURE)
        return Outline(
            format=f"GGUF {file.version}",
            file_bytes=file.stamp.size,
            architecture=architecture,
            name=_string(file.metadata, names.NAME),
            hyperparameters=hyperparameters_of(file.metadata, architecture or ""),
            tensors=tuple((info.type, info.shape, info.nbytes) for info in file.tensors.values()),
            metadata={key: _plain(value) for key, value in file.metadata.items()},
        )


def _string(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _plain(value: object) -> object:
    """`value` as a value of JSON, with long arrays cut. Infinities and NaN become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, np.ndarray | StringArray):
        first = [_plain(item) for item in _list(value[:_SHOWN_ELEMENTS])]
        return first if len(value) <= _SHOWN_ELEMENTS else {"length": len(value), "first": first}
    return value


def _list(values: Any) -> list[object]:
    plain: list[object] = values.tolist() if isinstance(values, np.ndarray) else values
    return plain
