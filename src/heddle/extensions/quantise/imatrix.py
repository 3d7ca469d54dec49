"""Importance matrices in llama.cpp's GGUF form (`tools/imatrix`).

For each matrix the file has two tensors, named after the matrix: `.in_sum2`, the sum of squares of
each input column over all tokens, (matrices, columns), and `.counts`, the number of tokens,
(matrices, 1). A stack of experts has several matrices; any other tensor has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.extensions.quantise.writer import NewTensor, write_gguf
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_SUMS, _COUNTS = ".in_sum2", ".counts"
_LEAST_SHARE = 1e-6
"""Least importance of a column, as a share of the mean: no column may become worthless."""


@dataclass(frozen=True, slots=True)
class InputSums:
    """Sums over the inputs of a matrix, or of each matrix of a stack of experts.

    Attributes:
        squares: sum of the squares of each column, (matrices, columns).
        counts: number of tokens that each matrix has read, (matrices,).
    """

    squares: NDArray[np.float64]
    counts: NDArray[np.int64]


def write_imatrix(
    path: Path, sums: Mapping[str, InputSums], *, dataset: str, chunks: int, chunk_size: int
) -> None:
    """Write sums by the matrix's name in GGUF.

    Raises:
        ModelSourceError: the file cannot be written.
    """
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": [dataset],
        "imatrix.chunk_count": chunks,
        "imatrix.chunk_size": chunk_size,
    }
    tensors = []
    for name, found in sorted(sums.items()):
        tensors.append(_tensor(name + _SUMS, found.squares))
        tensors.append(_tensor(name + _COUNTS, found.counts[:, None]))
    write_gguf(path, metadata, tensors)


def _tensor(name: str, values: NDArray[np.float64] | NDArray[np.int64]) -> NewTensor:
    content = values.astype(np.float32).reshape(-1).view(np.uint8)
    return NewTensor(name, values.shape, TensorType.F32, lambda: content)


def read_imatrix(path: Path) -> dict[str, NDArray[np.float32]]:
    """The mean square of each input column (matrices, columns), by the matrix's name in GGUF.

    All columns of a matrix that read no token have the same one.

    Raises:
        ModelSourceError: the file cannot be read.
        ModelFileError: the file is no importance matrix in GGUF, or is damaged.
    """
    with GGUFFile.open(path) as file:
        if file.metadata.get("general.type") != "imatrix":
            raise ModelFileError(
                f"{path} is not an importance matrix: general.type is"
                f" {file.metadata.get('general.type')!r}; `heddle imatrix` writes one",
                field="general.type",
            )
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        return {name: _importance(file, name) for name in names}


def _importance(file: GGUFFile, name: str) -> NDArray[np.float32]:
    if name + _COUNTS not in file.tensors:
        raise ModelFileError(f"{file.path}: {name}{_COUNTS} is missing", field=name + _COUNTS)
    sums, counts = (_values(file, name + part) for part in (_SUMS, _COUNTS))
    counts = counts.reshape(-1, 1)
    if len(counts) != len(sums) or not np.isfinite(sums).all() or (sums < 0).any():
        raise ModelFileError(
            f"{file.path}: {name}{_SUMS} is not a sum of squares for each of {len(counts)} counts",
            field=name + _SUMS,
        )
    means = sums / np.maximum(counts, 1)
    least = means.mean(axis=1, keepdims=True) * _LEAST_SHARE
    return np.where(least > 0, np.maximum(means, least), 1).astype(np.float32)


def _values(file: GGUFFile, name: str) -> NDArray[np.float32]:
    """A tensor (matrices, columns). A vector is one matrix's."""
    tensor = file.tensors[name]
    values = dequantize(file.data(name), tensor.type, tensor.shape)
    return values.reshape(-1, tensor.shape[-1])
