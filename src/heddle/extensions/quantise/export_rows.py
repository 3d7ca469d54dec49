"""Shapes of tensors in GGUF, and orders of their rows and columns, as llama.cpp writes them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.extensions.quantise.export import exported_architecture
from heddle.extensions.quantise.export_recurrent import MAMBA, SCANS
from heddle.weights.gguf.names import names_of
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.hyperparameters import Hyperparameters

_WITH_GATES = ".mixer.qkvz.weight"


def exported_shape(checkpoint: Checkpoint, tensor: TensorInfo) -> tuple[int, ...]:
    """The shape that GGUF has for a tensor.

    Rates of decay of Mamba are a matrix. Vectors of Mamba-2 and of Kimi delta attention are
    matrices of one column, the norm of Mamba-2 has a row for each group, and filters of Kimi delta
    attention have axes of one element.

    Raises:
        UnsupportedModelError: GGUF has the columns of a folder's matrix in another order, and they
            are quantised already.
    """
    shape, architecture = tensor.shape, exported_architecture(checkpoint)
    part = tensor.name.removesuffix(".weight").rpartition(".")[2]
    _check_columns(checkpoint, tensor, architecture)
    if architecture in SCANS and part == "decay_rates":
        channels = checkpoint.hyperparameters.integer("state.inner")
        return (channels, shape[0] // channels)
    if architecture in MAMBA and part in ("decay_rates", "skip"):
        return (*shape, 1)
    if architecture in MAMBA and tensor.name.endswith(".mixer.norm.weight"):
        groups = checkpoint.hyperparameters.integer("state.groups", 1)
        return (groups, shape[0] // groups)
    if architecture == "kimi-linear" and part == "decay_rates":
        return (1, 1, *shape, 1)
    if architecture == "kimi-linear" and part.endswith("_conv"):
        return (1, shape[0], 1, shape[1])
    return shape


def exported_parts(checkpoint: Checkpoint, name: str) -> list[str]:
    """Canonical names of what GGUF has in place of a folder's tensor `name`, mostly itself.

    Qwen3-Next's folders have queries, keys, values and gates by key head. GGUF has the gates apart.
    """
    if checkpoint.format != "gguf" and name.endswith(_WITH_GATES):
        return [f"{name.removesuffix(_WITH_GATES)}.mixer.{part}.weight" for part in ("qkv", "z")]
    return [name]


def exported_tensors(checkpoint: Checkpoint, tensor: TensorInfo) -> list[TensorInfo]:
    """The tensors that GGUF has in place of a folder's tensor, under canonical names.

    A tensor whose type GGUF lacks becomes F32.
    """
    if not tensor.type.is_in_gguf:
        size = prod(tensor.shape) * TensorType.F32.block_bytes
        tensor = replace(tensor, type=TensorType.F32, nbytes=size, place=None)
    parts = exported_parts(checkpoint, tensor.name)
    if len(parts) == 1:
        return [tensor]
    row, found = tensor.nbytes // tensor.shape[0], []
    for name, rows in zip(parts, _rows_by_part(checkpoint.hyperparameters), strict=True):
        shape, size = (len(rows), *tensor.shape[1:]), len(rows) * row
        found.append(replace(tensor, name=name, shape=shape, nbytes=size, place=None))
    return found


def exported_content(checkpoint: Checkpoint, tensor: TensorInfo) -> NDArray[np.uint8]:
    """The bytes of a tensor of :func:`exported_tensors`, rows and columns in GGUF's order."""
    read, architecture = checkpoint.hyperparameters, exported_architecture(checkpoint)
    if checkpoint.format == "gguf":
        return checkpoint.read(tensor.name)
    if tensor.name not in checkpoint.tensors:
        layer, _, part = tensor.name.removesuffix(".weight").partition(".mixer.")
        whole = checkpoint.tensors[f"{layer}{_WITH_GATES}"]
        rows = _read(checkpoint, whole).reshape(whole.shape[0], -1)
        return rows[_rows_by_part(read)[part == "z"]].reshape(-1)
    raw = _read(checkpoint, checkpoint.tensors[tensor.name])
    if _says(architecture, "state.tiled") and ".mixer." in tensor.name:
        return _tiled(read, tensor, raw)
    return _paired(read, architecture, tensor, raw)


def _read(checkpoint: Checkpoint, tensor: TensorInfo) -> NDArray[np.uint8]:
    """The bytes of a folder's tensor, as F32 if GGUF lacks its type."""
    raw = checkpoint.read(tensor.name)
    if tensor.type.is_in_gguf:
        return raw
    return dequantize(raw, tensor.type, tensor.shape).reshape(-1).view(np.uint8)


def exported_columns(
    checkpoint: Checkpoint, name: str, columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A value for each input column (..., columns) of the matrix `name`, in GGUF's order."""
    if checkpoint.format == "gguf" or not _says(exported_architecture(checkpoint), "state.tiled"):
        return columns
    if not name.endswith(".mixer.output.weight"):
        return columns
    return columns[..., _tiles(checkpoint.hyperparameters, columns.shape[-1], 0)]


def _rows_by_part(read: Hyperparameters) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of queries, keys and values, and of gates, in a matrix that has them by key head."""
    groups, size = read.integer("state.groups"), read.integer("state.key_dim")
    own = read.integer("state.heads") // groups * read.integer("state.value_dim", size)
    rows = np.arange(groups * 2 * (size + own)).reshape(groups, -1)
    parts = [one.reshape(-1) for one in np.split(rows, np.cumsum([size, size, own]), axis=1)]
    return np.concatenate(parts[:3]), parts[3]


def _paired(
    read: Hyperparameters, architecture: str, tensor: TensorInfo, raw: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Rows of queries and keys in pairs.

    Where rope pairs neighbours in GGUF, and halves in the folder, the rows of the two halves
    alternate in the rotated part of a head.
    """
    part = tensor.name.rpartition(".")[0].rpartition("attention.")[2]
    moves = _says(architecture, "rope.interleaved") and not read.flag("rope.interleaved", False)
    if not moves or part not in ("q", "k"):
        return raw
    heads = read.integer("heads")
    if part == "k":
        heads = read.integer("kv_heads", heads)
    rows = raw.reshape(heads, tensor.shape[0] // heads, -1)
    dim = read.integer("rope.dim", rows.shape[1])
    halves = rows[:, :dim].reshape(heads, 2, dim // 2, -1)
    turned = halves.swapaxes(1, 2).reshape(heads, dim, -1)
    return np.concatenate([turned, rows[:, dim:]], axis=1).reshape(-1)


def _tiled(read: Hyperparameters, tensor: TensorInfo, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Value heads in tiles: head i has key head i modulo their number."""
    part = tensor.name.rpartition(".")[0].rpartition("mixer.")[2]
    if part == "output":
        order = _tiles(read, tensor.shape[1], 0)
        return raw.reshape(tensor.shape[0], len(order), -1)[:, order].reshape(-1)
    if part in ("qkv", "conv"):
        first = 2 * read.integer("state.groups") * read.integer("state.key_dim")
    elif part in ("z", "beta", "alpha", "decay_rates", "step_bias"):
        first = 0
    else:
        return raw
    order = _tiles(read, tensor.shape[0], first)
    return raw.reshape(len(order), -1)[order].reshape(-1)


def _tiles(read: Hyperparameters, count: int, first: int) -> NDArray[np.intp]:
    """The order of `count` elements, of which those of value heads begin at `first`."""
    values = np.arange(first, count)
    groups, heads = read.integer("state.groups"), read.integer("state.heads")
    by_head = values.reshape(groups, heads // groups, -1)
    return np.concatenate([np.arange(first), by_head.swapaxes(0, 1).reshape(-1)])


def _check_columns(checkpoint: Checkpoint, tensor: TensorInfo, architecture: str) -> None:
    is_moved = _says(architecture, "state.tiled") and checkpoint.format != "gguf"
    if is_moved and tensor.name.endswith(".mixer.output.weight") and tensor.type.block_elements > 1:
        raise UnsupportedModelError(
            f"tensor {tensor.label} is quantised as {tensor.type.name} and cannot be written as"
            f" GGUF: its columns have another order in {architecture}; take a folder in BF16",
            param=tensor.label,
        )


def _says(architecture: str, name: str) -> bool:
    """Whether files of a GGUF architecture imply the hyperparameter `name`."""
    return names_of(architecture).values.get(name) is True
