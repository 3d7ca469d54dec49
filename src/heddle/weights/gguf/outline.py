"""Reads what a GGUF file says about itself, also if Heddle cannot run the model."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.weights.checkpoint import Outline
from heddle.weights.gguf import names
from heddle.weights.gguf.file import StringArray, shortest_float
from heddle.weights.gguf.generation import read_recommended
from heddle.weights.gguf.hyperparameters import ANY_FILE, hyperparameters_of
from heddle.weights.gguf.split import open_parts
from heddle.weights.gguf.tokenizer import end_tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHOWN_ELEMENTS = 8


def read_outline(path: Path) -> Outline:
    """The outline of the file at `path`, and of all other parts of a split one.

    Raises:
        ModelSourceError, ModelFileError, UnsupportedModelError: as :func:`open_parts`.
    """
    files = open_parts(path)
    with ExitStack() as stack:
        for file in files:
            stack.enter_context(file)
        metadata = files[0].metadata
        architecture = _string(metadata, names.ARCHITECTURE)
        parts = f", {len(files)} parts" if len(files) > 1 else ""
        return Outline(
            format=f"GGUF {files[0].version}{parts}",
            file_bytes=sum(file.stamp.size for file in files),
            architecture=architecture,
            name=_string(metadata, names.NAME),
            hyperparameters=hyperparameters_of(metadata, architecture or "", ANY_FILE),
            tensors=tuple(
                (info.type, info.shape, info.nbytes)
                for file in files
                for info in file.tensors.values()
            ),
            sampling=read_recommended(metadata, path).values,
            end_tokens=end_tokens_of(metadata),
            metadata={key: _plain(value) for key, value in metadata.items()},
        )


def _string(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _plain(value: object) -> object:
    """`value` as a value of JSON, with long arrays cut. Infinities and NaN become strings."""
    if isinstance(value, float):
        return shortest_float(value) if math.isfinite(value) else str(value)
    if isinstance(value, np.ndarray | StringArray):
        first = [_plain(item) for item in _list(value[:_SHOWN_ELEMENTS])]
        return first if len(value) <= _SHOWN_ELEMENTS else {"length": len(value), "first": first}
    return value


def _list(values: Any) -> list[object]:
    plain: list[object] = values.tolist() if isinstance(values, np.ndarray) else values
    return plain
