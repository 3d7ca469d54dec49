"""Merges an adapter into its model: a GGUF file whose matrices are W + scale * B @ A."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.lora.reading import read_adapter
from heddle.extensions.quantise.quantising import Written, write_file
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.mix import Mix
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.low_rank import LowRank
    from heddle.weights.progress import Progress

    Bytes = NDArray[np.uint8]

_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
_NO_CHANGES: Mapping[str, LowRank] = MappingProxyType({})


class _MergedFile(GGUFCheckpoint):
    """A GGUF file whose matrices are read with their changes."""

    changes = _NO_CHANGES

    def read(self, name: str, start: int = 0, size: int | None = None) -> Bytes:
        change = self.changes.get(name.removesuffix(".weight"))
        if change is None:
            return super().read(name, start, size)
        whole = _merged(self.tensors[name], super().read(name), change)
        return whole[start : None if size is None else start + size]


class _MergedFolder(HuggingFaceCheckpoint):
    """A folder whose matrices are read with their changes."""

    changes = _NO_CHANGES

    def read(self, name: str, start: int = 0, size: int | None = None) -> Bytes:
        change = self.changes.get(name.removesuffix(".weight"))
        if change is None:
            return super().read(name, start, size)
        whole = _merged(self.tensors[name], super().read(name), change)
        return whole[start : None if size is None else start + size]


def merge_files(
    model: Path, adapter: str | Path, target: Path, progress: Progress | None = None
) -> Written:
    """Write the model at `model` with the changes of an adapter to the GGUF file `target`.

    Each matrix keeps its type. Sums are made in float32.

    Raises:
        ModelSourceError: a file cannot be read or written, or the disk has too little space.
        ModelFileError: a file is damaged, or the adapter does not fit the model.
        UnsupportedModelError: a changed matrix is quantised, the adapter is not supported, or GGUF
            cannot express the model.
    """
    opener = _MergedFolder if model.is_dir() else _MergedFile
    with opener.open(model) as checkpoint:
        changes = read_adapter(adapter, checkpoint).changes
        _check_types(changes, checkpoint)
        checkpoint.changes = changes
        return write_file(checkpoint, target, Mix(), progress=progress)


def _check_types(changes: Mapping[str, LowRank], checkpoint: Checkpoint) -> None:
    """Raise UnsupportedModelError if a changed matrix is no matrix of floats of its own."""
    for name in changes:
        tensor = checkpoint.tensors.get(f"{name}.weight")
        if tensor is None:
            label = checkpoint.label(f"{name}.weight")
            raise UnsupportedModelError(
                f"the adapter changes {label}, and {checkpoint.path} has it as its embedding, too,"
                " which the adapter does not change; serve the adapter beside its model",
                param=label,
            )
        if tensor.type not in _FLOATS:
            raise UnsupportedModelError(
                f"tensor {tensor.label} of {checkpoint.path} is quantised as {tensor.type.name}:"
                " the merged matrix would lose more. Merge into the original model, then quantise"
                " the result with `heddle quantize`; or serve the adapter beside its model",
                param=tensor.label,
            )


def _merged(tensor: TensorInfo, raw: Bytes, change: LowRank) -> Bytes:
    """The bytes of a matrix and its change, in the matrix's own type."""
    values = dequantize(raw, tensor.type, tensor.shape)
    values += np.float32(change.scale) * (change.b @ change.a)
    with np.errstate(over="ignore"):
        stored = _stored(values, tensor.type)
    if not np.isfinite(dequantize(stored, tensor.type, tensor.shape)).all():
        raise ModelFileError(
            f"tensor {tensor.label} has merged values that {tensor.type.name} does not hold; merge"
            " into a model of another type",
            field=tensor.label,
        )
    return stored


def _stored(values: NDArray[np.float32], kind: TensorType) -> Bytes:
    """Values rounded to the nearest of a type, to even ones where two are as near."""
    if kind is TensorType.F16:
        return values.astype(np.float16).reshape(-1).view(np.uint8)
    if kind is TensorType.BF16:
        bits = values.reshape(-1).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(np.uint8)
    return values.reshape(-1).view(np.uint8)
