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
from heddle.weights.low_rank import LowRank, Whole, expert_name
from heddle.weights.mix import Mix
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.low_rank import Change
    from heddle.weights.progress import Progress

    Bytes = NDArray[np.uint8]

_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
_NO_CHANGES: Mapping[str, LowRank] = MappingProxyType({})


class _MergedFile(GGUFCheckpoint):
    """A GGUF file whose matrices are read with their changes."""

    changes = _NO_CHANGES

    def read(self, name: str, start: int = 0, size: int | None = None) -> Bytes:
        return _read(self, super().read, name, start, size)


class _MergedFolder(HuggingFaceCheckpoint):
    """A folder whose matrices are read with their changes."""

    changes = _NO_CHANGES

    def read(self, name: str, start: int = 0, size: int | None = None) -> Bytes:
        return _read(self, super().read, name, start, size)


def _read(
    checkpoint: _MergedFile | _MergedFolder,
    read_stored: Callable[..., Bytes],
    name: str,
    start: int,
    size: int | None,
) -> Bytes:
    tensor = checkpoint.tensors.get(name)
    if tensor is None or not _changes_of(tensor, checkpoint.changes):
        return read_stored(name, start, size)
    whole = _merged(tensor, read_stored(name), checkpoint.changes)
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
        checkpoint.changes = {
            name: change for name, change in changes.items() if isinstance(change, LowRank)
        }
        _check_types(changes, checkpoint)
        return write_file(checkpoint, target, Mix(), progress=progress)


def _check_types(changes: Mapping[str, Change], checkpoint: Checkpoint) -> None:
    """Raise UnsupportedModelError if a changed matrix is no matrix of floats of its own."""
    for name, change in changes.items():
        if isinstance(change, Whole) or name == "embedding":
            label = checkpoint.label(f"{name}.weight")
            raise UnsupportedModelError(
                f"the adapter changes {label} as a whole, or where tokens are looked up: Heddle"
                " merges changes of products alone. Serve the adapter beside its model",
                param=label,
            )
        stack = name.rpartition(".")[0]
        tensor = checkpoint.tensors.get(f"{name}.weight") or checkpoint.tensors.get(
            f"{stack}.weight"
        )
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


def _changes_of(
    tensor: TensorInfo, changes: Mapping[str, LowRank]
) -> list[tuple[int | slice, LowRank]]:
    """The changes of a matrix, or of those of a stack, each with its place in the stack."""
    stem = tensor.name.removesuffix(".weight")
    places: list[tuple[int | slice, str]] = [(slice(None), stem)]
    if len(tensor.shape) == 3:
        places = [(expert, expert_name(stem, expert)) for expert in range(tensor.shape[0])]
    return [(place, changes[name]) for place, name in places if name in changes]


def _merged(tensor: TensorInfo, raw: Bytes, changes: Mapping[str, LowRank]) -> Bytes:
    """The bytes of a tensor and its changes, in the tensor's own type."""
    values = dequantize(raw, tensor.type, tensor.shape)
    for place, change in _changes_of(tensor, changes):
        if change.gains is not None:
            values[place] *= 1 + change.gains[:, None]
        values[place] += np.float32(change.scale) * (change.b @ change.a)
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
