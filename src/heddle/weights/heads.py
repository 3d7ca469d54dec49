"""Keys and values of the heads of latent attention, which files may store as one matrix.

The matrix has the rows of one head after those of another: first the rows that make its keys, then
those that make its values. The canonical tensors are stacks with a matrix for each head, and those
of keys are transposed: queries are multiplied with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.weights.checkpoint import FilePlace
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.weights.checkpoint import TensorInfo
    from heddle.weights.hyperparameters import Hyperparameters

FUSED = ".attention.head_keys_values.weight"
_KEYS, _VALUES = ".attention.head_keys.weight", ".attention.head_values.weight"


def take_heads_apart(
    name: str, tensor: TensorInfo, hyperparameters: Hyperparameters
) -> dict[str, TensorInfo]:
    """The stacks of keys and of values that the tensor `name` holds, by canonical name.

    Transposed keys of a quantised matrix are F32, because its blocks lie along the other axis.

    Raises:
        ModelFileError: the tensor has other rows than the hyperparameters require.
    """
    read = hyperparameters
    heads, rank, values = (read.integer(one) for one in ("heads", "latent_rank", "value_dim"))
    keys = read.integer("key_dim") - read.integer("rope.dim")
    rows = keys + values
    if keys < 1 or tensor.shape != (heads * rows, rank):
        raise ModelFileError(
            f"tensor {tensor.label} has shape {tensor.shape}; the hyperparameters require"
            f" {(heads * rows, rank)}: {keys} rows for keys and {values} for values of each of"
            f" {heads} heads",
            field=tensor.label,
        )
    row = tensor.nbytes // (heads * rows)
    slices: tuple[FilePlace, ...] = ()
    if tensor.place is not None:
        at = tensor.place
        starts = ((head * rows + keys) * row for head in range(heads))
        slices = tuple(FilePlace(at.descriptor, at.offset + start) for start in starts)
    whole = name.removesuffix(FUSED)
    of_keys, of_values = f"{whole}{_KEYS}", f"{whole}{_VALUES}"
    kind, size = _type_of_keys(tensor.type), heads * keys * rank
    return {
        of_keys: replace(
            tensor,
            name=of_keys,
            shape=(heads, rank, keys),
            type=kind,
            nbytes=size * kind.block_bytes,
            place=None,
        ),
        of_values: replace(
            tensor,
            name=of_values,
            shape=(heads, values, rank),
            nbytes=heads * values * row,
            place=None,
            slices=slices,
        ),
    }


def is_of_heads(tensor: TensorInfo) -> bool:
    """Whether the tensor is a stack of keys or of values of heads."""
    return tensor.name.endswith((_KEYS, _VALUES))


def part_of_heads(part: TensorInfo, kind: TensorType, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of a part, from the bytes of the whole matrix, which has type `kind`."""
    heads = part.shape[0]
    if part.name.endswith(_VALUES):
        of_heads = raw.reshape(heads, -1)
        return of_heads[:, of_heads.shape[1] - part.nbytes // heads :].reshape(-1)
    _, rank, keys = part.shape
    if kind.block_elements == 1:
        matrix = raw.view(f"u{kind.block_bytes}").reshape(heads, -1, rank)
    else:
        rows = raw.size // (rank // kind.block_elements * kind.block_bytes)
        matrix = dequantize(raw, kind, (rows, rank)).reshape(heads, -1, rank)
    return np.ascontiguousarray(matrix[:, :keys].swapaxes(1, 2)).reshape(-1).view(np.uint8)


def _type_of_keys(stored: TensorType) -> TensorType:
    return stored if stored.block_elements == 1 else TensorType.F32
