"""Quantises tensors of a checkpoint to bytes of a file, with the encoders of the native core."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.cores import usable_cores
from heddle.weights.checkpoint import non_finite_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.tensor_types import TensorType

_EQUAL = np.empty(0, np.float32)


class Quantiser:
    """Threads that quantise."""

    def __init__(self, threads: int = 0) -> None:
        """0 threads: as many as compute by default."""
        self._runtime = _native.Runtime(threads or usable_cores(), "auto")

    def quantise(
        self,
        checkpoint: Checkpoint,
        tensor: TensorInfo,
        raw: NDArray[np.uint8],
        kind: TensorType,
        importance: NDArray[np.float32] | None = None,
    ) -> NDArray[np.uint8]:
        """The tensor's values as rows of type `kind`, in the file's form (bytes,).

        Args:
            checkpoint: for errors.
            tensor: describes `raw`, its bytes.
            raw: rows of floats.
            kind: a type that has an encoder.
            importance: weight of each column's error: (columns,), or (matrices, columns) for a
                stack of matrices; None: all equal.

        Raises:
            ModelFileError: a value is infinite or NaN.
        """
        stack = math.prod(tensor.shape[:-2])
        weights = None
        if importance is not None:
            weights = np.broadcast_to(importance, (stack, tensor.shape[-1])).astype(np.float32)
        parts = []
        for index, matrix in enumerate(raw.reshape(stack, -1)):
            own = None if weights is None else weights[index]
            encoded, row = self.rows(tensor, matrix, kind, own)
            if row is not None:
                raise non_finite_weights(checkpoint, tensor, f"row {row}")
            parts.append(encoded)
        return parts[0] if stack == 1 else np.concatenate(parts)

    def rows(
        self,
        tensor: TensorInfo,
        raw: NDArray[np.uint8],
        kind: TensorType,
        importance: NDArray[np.float32] | None = None,
    ) -> tuple[NDArray[np.uint8], int | None]:
        """Some rows of a tensor, in the file's form (bytes,), and the first row that has an
        infinite value or NaN, or None.

        `raw` has the bytes of whole rows, and `importance` is (columns,).
        """
        columns = tensor.shape[-1]
        row_bytes = columns // tensor.type.block_elements * tensor.type.block_bytes
        encoded, row = _native.quantise(
            self._runtime,
            int(kind),
            np.ascontiguousarray(raw),
            int(tensor.type),
            raw.size // row_bytes,
            columns,
            _EQUAL if importance is None else np.ascontiguousarray(importance),
        )
        return encoded, None if row < 0 else row
