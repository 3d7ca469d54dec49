"""The lengths that DoRA gives the rows of changed matrices (Liu et al. 2024, arXiv:2402.09353).

A changed row of W + scale * B @ A has the length that the adapter says. So the product with it is
W x + scale * B (A x), times this length over that which the row would have. The model's stored
values say the latter, also where they are quantised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint
    from heddle.weights.low_rank import LowRank

    Floats = NDArray[np.float32]

_PIECE = 1 << 22
"""Values of a matrix that are in memory at a time, if its file can be read in parts."""


def with_lengths(change: LowRank, wanted: Floats, name: str, base: Checkpoint) -> LowRank:
    """A change that also gives the rows of the matrix `name` the lengths `wanted`.

    Raises:
        ModelFileError: a row of the changed matrix has no length.
    """
    lengths = np.empty(len(wanted), np.float64)
    for first, rows in _pieces(name, base):
        part = slice(first, first + len(rows))
        changed = rows + np.float32(change.scale) * (change.b[part] @ change.a)
        lengths[part] = np.sqrt(np.einsum("ij,ij->i", changed, changed, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factors = wanted / lengths
        gains = (factors - 1).astype(np.float32)
        b = (change.b * factors[:, None]).astype(np.float32)
    if not (np.isfinite(gains).all() and np.isfinite(b).all()):
        row = int(np.isfinite(factors).argmin())
        raise ModelFileError(
            f"row {row} of {base.label(name)} has the length {lengths[row]:.3g} with the adapter's"
            f" change, and its lora_magnitude_vector says {wanted[row]:.3g}: no factor makes one of"
            " the other. Fetch the adapter again",
            field=base.label(name),
        )
    return replace(change, b=b, gains=gains)


def _pieces(name: str, base: Checkpoint) -> Iterator[tuple[int, Floats]]:
    """Rows of a matrix of the model, with the number of the first of them."""
    tensor = base.tensors.get(name) or base.tensors["embedding.weight"]
    rows, columns = tensor.shape
    size = tensor.nbytes // rows
    count = max(1, _PIECE // columns) if base.reads_parts(tensor.name) else rows
    for first in range(0, rows, count):
        some = min(count, rows - first)
        raw = base.read(tensor.name, first * size, some * size)
        yield first, dequantize(raw, tensor.type, (some, columns))
