"""Reads an adapter in a GGUF file, as llama.cpp's `convert_lora_to_gguf.py` writes it."""

from __future__ import annotations

import math
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from heddle.closing import Closing
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.lora.pairs import Pair, Side, pairs_of
from heddle.weights.gguf.file import GGUFFile, shortest_float
from heddle.weights.gguf.names import ARCHITECTURE
from heddle.weights.tensor_types import dequantize, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_TYPE, _ADAPTER, _ALPHA = "general.type", "adapter.type", "adapter.lora.alpha"
_INVOCATION = "adapter.alora.invocation_tokens"
_BASE = "general.base_model.0.name"
_SIDES = (".lora_a", ".lora_b")


class GGUFAdapter(Closing):
    """An open adapter.

    Attributes:
        path: the file.
        format: "gguf".
        architecture: the architecture of its model.
        base_name: the model that it was trained for, as its files call it; may be empty.
        pairs: the changed matrices.
        wholes: matrices that replace others; there are none in this format.
    """

    format = "gguf"
    wholes: Mapping[str, Side] = MappingProxyType({})

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            ModelSourceError: the file cannot be read.
            ModelFileError: the file is damaged, or is no adapter.
            UnsupportedModelError: the adapter is not supported.
        """
        self.path = path
        self._file = GGUFFile.open(path)
        try:
            self._check_kind()
            self.architecture = self._text(ARCHITECTURE)
            named = self._file.metadata.get(_BASE)
            self.base_name = named if isinstance(named, str) else ""
            self._alpha = self._read_alpha()
            self.pairs = pairs_of(self._sides(), path)
        except BaseException:
            self.close()
            raise

    def scale(self, pair: Pair) -> float:
        """The factor of a change. Without an alpha it is 1, as in llama.cpp."""
        return self._alpha / pair.rank if self._alpha else 1.0

    def check_unchanged(self) -> None:
        """Raise ModelFileError if somebody has written to the file since it was opened."""
        self._file.check_unchanged()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _check_kind(self) -> None:
        kind = self._file.metadata.get(_TYPE, "model")
        if kind != "adapter":
            raise ModelFileError(
                f"{self.path} is no adapter: {_TYPE} is {kind!r}, not 'adapter'. Give the file that"
                " llama.cpp's convert_lora_to_gguf.py has written",
                field=_TYPE,
            )
        kind = self._text(_ADAPTER)
        if kind != "lora":
            raise UnsupportedModelError(
                f"{self.path}: {_ADAPTER} {kind!r} is not supported; supported: lora",
                param=_ADAPTER,
            )
        if _INVOCATION in self._file.metadata:
            raise UnsupportedModelError(
                f"{self.path}: {_INVOCATION} is not supported: the adapter is active behind certain"
                " tokens alone (aLoRA); train the adapter without it",
                param=_INVOCATION,
            )

    def _text(self, key: str) -> str:
        value = self._file.metadata.get(key)
        if not isinstance(value, str):
            raise ModelFileError(f"{self.path}: {key} must be a string, got {value!r}", field=key)
        return value

    def _read_alpha(self) -> float:
        alpha = self._file.metadata.get(_ALPHA, 0.0)
        if not isinstance(alpha, float) or not math.isfinite(alpha):
            raise ModelFileError(
                f"{self.path}: {_ALPHA} must be a float, got {alpha!r}", field=_ALPHA
            )
        return shortest_float(alpha)

    def _sides(self) -> Iterator[tuple[str, str, Side]]:
        for label, stored in self._file.tensors.items():
            if not label.endswith(_SIDES):
                raise UnsupportedModelError(
                    f"{self.path}: tensor {label} is not supported: adapters have tensors *.lora_a"
                    " and *.lora_b alone. Merge the adapter into its model, and load that",
                    param=label,
                )
            if not stored.type.is_supported:
                raise unsupported(stored.type, label)
            matrix, _, side = label.rpartition(".lora_")
            yield matrix, side, Side(label, stored.shape, partial(self._values, label))

    def _values(self, label: str) -> NDArray[np.float32]:
        stored = self._file.tensors[label]
        return dequantize(self._file.data(label), stored.type, stored.shape)
