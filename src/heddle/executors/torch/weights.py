"""Weights on a torch device, as stored: floats of 16 or 32 bits, and the blocks of GGUF's types.

A matmul decodes a panel of rows at a time. No matrix is ever expanded as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from heddle.executors.torch.blocks import FLOATS, SUPPORTED, decode
from heddle.executors.torch.tiles import TILE, check_columns
from heddle.weights.checkpoint import claim, non_finite_weights
from heddle.weights.tensor_types import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.tensor_types import TensorType

_PANEL = 1 << 22
"""Most elements of a panel: 16 MB in float32."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix or table as stored.

    Attributes:
        rows: (n, k) of a type of torch, or (n, bytes of a row) uint8.
        type: how rows are stored.
        in_features: k.
        bias: (n,) float32, or None.
    """

    rows: torch.Tensor
    type: TensorType
    in_features: int
    bias: torch.Tensor | None = None

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """Columns of a table."""
        return self.in_features

    @property
    def panel_rows(self) -> int:
        """Rows of a panel. The last panel may have fewer."""
        return max(1, _PANEL // self.in_features)

    def panels(self) -> Iterator[torch.Tensor]:
        """Consecutive rows, float32. Where they lie follows from the matrix's shape."""
        for first in range(0, len(self.rows), self.panel_rows):
            yield decode(self.rows[first : first + self.panel_rows], self.type)

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows (n,) with these indices: (n, k) float32."""
        return decode(self.rows[rows], self.type)


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices of one shape, one for each expert or head."""

    matrices: tuple[Matrix, ...]

    @property
    def count(self) -> int:
        """Number of matrices."""
        return len(self.matrices)

    @property
    def out_features(self) -> int:
        """Rows of each matrix."""
        return self.matrices[0].out_features

    @property
    def in_features(self) -> int:
        """Columns of each matrix."""
        return self.matrices[0].in_features

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.rows.nbytes for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters (channels, taps) of a convolution, float32, and biases (channels,) or None."""

    values: torch.Tensor
    bias: torch.Tensor | None


Weight = Matrix | Stack | Filters | torch.Tensor


class TorchLoader:
    """Uploads each tensor when the model claims it; see `heddle.models.ops.Loader`.

    Vectors are float32 tensors.

    Attributes:
        matmul_bytes: bytes of the matrices that matmuls read.
        bytes: bytes of all tensors on the device.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        *,
        allow_nonfinite: bool,
        progress: Callable[[int], None],
    ) -> None:
        """The loader calls `progress` with the bytes of the files loaded so far."""
        self.matmul_bytes = 0
        self.bytes = 0
        self._checkpoint = checkpoint
        self._device = device
        self._allow_nonfinite = allow_nonfinite
        self._progress = progress
        self._read = 0
        self._tables: dict[str, torch.Tensor] = {}
        self._checked: set[tuple[int, int]] = set()

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._checkpoint.tensors

    def linear(self, name: str, out_features: int, in_features: int) -> Matrix:
        tensor = self._tensor(f"{name}.weight", (out_features, in_features))
        rows = self._tables.get(name)
        if rows is None:
            rows = self._rows(tensor)
        matrix = Matrix(rows, tensor.type, in_features, self._bias(name, (out_features,)))
        self._check(matrix)
        self.matmul_bytes += rows.nbytes
        return matrix

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> Stack:
        tensor = self._tensor(f"{name}.weight", (count, out_features, in_features))
        rows = self._rows(tensor)
        bias = self._bias(name, (count, out_features))
        stack = Stack(
            tuple(
                Matrix(
                    rows[index * out_features : (index + 1) * out_features],
                    tensor.type,
                    in_features,
                    None if bias is None else bias[index],
                )
                for index in range(count)
            )
        )
        self._check(stack.matrices[0])
        self.matmul_bytes += stack.nbytes
        return stack

    def embedding(self, name: str, rows: int, width: int) -> Matrix:
        """A table. If the output matrix is the same tensor, both share its memory."""
        tensor = self._tensor(f"{name}.weight", (rows, width))
        if name not in self._tables:
            self._tables[name] = self._rows(tensor)
        return Matrix(self._tables[name], tensor.type, width)

    def vector(self, name: str, width: int) -> torch.Tensor:
        return self._values(f"{name}.weight", (width,))

    def filters(self, name: str, parts: Sequence[int], taps: int) -> tuple[Filters, ...]:
        channels = sum(parts)
        values = self._values(f"{name}.weight", (channels, taps))
        bias = self._bias(name, (channels,))
        own = [slice(end - count, end) for count, end in zip(parts, accumulate(parts), strict=True)]
        return tuple(Filters(values[at], None if bias is None else bias[at]) for at in own)

    def filled(self, width: int, value: float = 1.0) -> torch.Tensor:
        return torch.full((width,), value, device=self._device)

    def constants(self, name: str, width: int) -> tuple[float, ...]:
        return tuple(self.vector(name, width).tolist())

    def _bias(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        bias = f"{name}.bias"
        return self._values(bias, shape) if bias in self._checkpoint.tensors else None

    def _values(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensor(name, shape)
        return decode(self._rows(tensor), tensor.type).reshape(shape)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        tensor = claim(self._checkpoint, name, shape)
        if tensor.type not in SUPPORTED:
            raise unsupported(tensor.type, tensor.label)
        return tensor

    def _rows(self, tensor: TensorInfo) -> torch.Tensor:
        """The tensor's rows on the device: all axes but the last are one."""
        raw = torch.empty(tensor.nbytes, dtype=torch.uint8)  # aligned, which a file's bytes are not
        raw.numpy()[:] = self._checkpoint.read(tensor.name)
        columns, kind = tensor.shape[-1], tensor.type
        row_bytes = columns // kind.block_elements * kind.block_bytes
        rows = raw.reshape(-1, row_bytes)
        if kind in FLOATS:
            rows = rows.view(FLOATS[kind])
        rows = rows.to(self._device)
        self._check_finite(tensor, Matrix(rows, kind, columns))
        self.bytes += rows.nbytes
        self._read += tensor.nbytes
        self._progress(self._read)
        return rows

    def _check_finite(self, tensor: TensorInfo, matrix: Matrix) -> None:
        if self._allow_nonfinite:
            return
        for index, panel in enumerate(matrix.panels()):
            finite = panel.isfinite().all(-1)
            if not finite.all():
                row = index * matrix.panel_rows + int(finite.logical_not().int().argmax())
                raise non_finite_weights(self._checkpoint, tensor, f"row {row}")

    def _check(self, matrix: Matrix) -> None:
        """Check matmuls with panels of these shapes, once for each shape."""
        last = (len(matrix.rows) - 1) // matrix.panel_rows * matrix.panel_rows
        for first in {0, last}:
            rows = matrix.rows[first : first + matrix.panel_rows]
            shape = (len(rows), matrix.in_features)
            if shape not in self._checked:
                self._checked.add(shape)
                check_columns(decode(rows, matrix.type).nan_to_num(0.0, 0.0, 0.0), TILE)
