"""Weights on a torch device: floats of 16 or 32 bits, and the blocks of GGUF's types.

A matmul decodes a panel of rows at a time. No matrix is ever expanded as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from heddle.executors.torch.blocks import decode
from heddle.executors.torch.tiles import TILE, check_columns
from heddle.executors.torch.upload import Uploader
from heddle.weights.checkpoint import claim, non_finite_weights
from heddle.weights.tensor_types import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.mix import Mix
    from heddle.weights.tensor_types import TensorType

_PANEL = 1 << 19
"""Most elements of a panel: 2 MB in float32, which a cache holds."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix or table as stored.

    Attributes:
        fields: rows as stored, each (n, ...); see :func:`heddle.executors.torch.blocks.fields_of`.
        type: how rows are stored.
        in_features: k.
        bias: (n,) float32, or None.
    """

    fields: tuple[torch.Tensor, ...]
    type: TensorType
    in_features: int
    bias: torch.Tensor | None = None

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""
        return len(self.fields[0])

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
        for first in range(0, self.out_features, self.panel_rows):
            yield self.panel(first)

    def panel(self, first: int) -> torch.Tensor:
        """The panel that begins at row `first`."""
        rows = slice(first, first + self.panel_rows)
        return decode([field[rows] for field in self.fields], self.type)

    def part(self, first: int, count: int) -> Matrix:
        """The matrix of some of the rows."""
        rows = slice(first, first + count)
        own = tuple(field[rows] for field in self.fields)
        bias = None if self.bias is None else self.bias[rows]
        return Matrix(own, self.type, self.in_features, bias)

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows (n,) with these indices: (n, k) float32."""
        return decode([field[rows] for field in self.fields], self.type)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(field.nbytes for field in self.fields)


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices of one shape, one for each expert or head.

    Attributes:
        matrices: parts of `whole`, in its order.
        whole: all matrices below one another.
    """

    matrices: tuple[Matrix, ...]
    whole: Matrix

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
        return self.whole.nbytes


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
        mix: Mix,
        allow_nonfinite: bool,
        progress: Callable[[int], None],
        threads: int = 0,
    ) -> None:
        """`mix` says which type each matrix gets.

        The loader calls `progress` with the bytes of the files loaded so far. `threads` of the
        processor quantise; 0: one per core.
        """
        self.matmul_bytes = 0
        self.bytes = 0
        self._checkpoint = checkpoint
        self._device = device
        self._allow_nonfinite = allow_nonfinite
        self._mix = mix
        self._uploader = Uploader(
            checkpoint,
            device,
            allow_nonfinite=allow_nonfinite,
            progress=progress,
            threads=threads,
        )
        self._tables: dict[str, Matrix] = {}
        self._checked: set[tuple[int, ...]] = set()

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._checkpoint.tensors

    def linear(self, name: str, out_features: int, in_features: int) -> Matrix:
        tensor = self._tensor(f"{name}.weight", (out_features, in_features))
        matrix = self._tables.get(name) or self._matrix(tensor)
        matrix = replace(matrix, bias=self._bias(name, (out_features,)))
        self._check(matrix)
        self.matmul_bytes += matrix.nbytes
        return matrix

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> Stack:
        tensor = self._tensor(f"{name}.weight", (count, out_features, in_features))
        bias = self._bias(name, (count, out_features))
        whole = replace(self._matrix(tensor), bias=None if bias is None else bias.flatten())
        matrices = (whole.part(index * out_features, out_features) for index in range(count))
        stack = Stack(tuple(matrices), whole)
        self._check(stack.matrices[0])
        self.matmul_bytes += stack.nbytes
        return stack

    def embedding(self, name: str, rows: int, width: int) -> Matrix:
        """A table. If the output matrix is the same tensor, both share its memory."""
        tensor = self._tensor(f"{name}.weight", (rows, width))
        if name not in self._tables:
            self._tables[name] = self._matrix(tensor)
        return self._tables[name]

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
        return decode(self._uploaded(tensor, tensor.type).fields, tensor.type).reshape(shape)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        tensor = claim(self._checkpoint, name, shape)
        if not tensor.type.is_supported:
            raise unsupported(tensor.type, tensor.label)
        return tensor

    def _matrix(self, tensor: TensorInfo) -> Matrix:
        return self._uploaded(tensor, self._mix.type_of(tensor))

    def _uploaded(self, tensor: TensorInfo, kind: TensorType) -> Matrix:
        """The tensor on the device, as type `kind`; all axes but the last are rows."""
        matrix = Matrix(self._uploader.fields(tensor, kind), kind, tensor.shape[-1])
        self._check_finite(tensor, matrix)
        self.bytes += matrix.nbytes
        return matrix

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
        last = (matrix.out_features - 1) // matrix.panel_rows * matrix.panel_rows
        for first in {0, last}:
            panel = matrix.panel(first)
            if panel.shape not in self._checked:
                self._checked.add(panel.shape)
                check_columns(panel.nan_to_num(0.0, 0.0, 0.0), TILE)
