"""Weights on a torch device: floats of 16 or 32 bits, and the blocks of GGUF's types.

A matmul decodes a panel of rows at a time. No matrix is ever expanded as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.extensions.torch.blocks import decode
from heddle.extensions.torch.division.claims import WHOLE, Cut
from heddle.extensions.torch.tiles import TILE, check_columns
from heddle.extensions.torch.upload import Uploader
from heddle.weights.checkpoint import claim, non_finite_weights
from heddle.weights.low_rank import product_name
from heddle.weights.mix import Mix
from heddle.weights.tensor_types import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heddle.config import EngineConfig
    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.tensor_types import TensorType

_PANEL = 1 << 19
"""Most elements of a panel: 2 MB in float32, which a cache holds."""

_CHECKED_ON_GPU = 1 << 23
"""Elements that a GPU checks at once. Smaller parts would be launches more than work."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix or table as stored.

    Attributes:
        fields: rows as stored, each (n, ...); see :func:`heddle.extensions.torch.blocks.fields_of`.
        type: how rows are stored.
        in_features: k.
        bias: (n,) float32, or None.
        name: for adapters, of a matrix that `TorchLoader.linear` loaded.
    """

    fields: tuple[torch.Tensor, ...]
    type: TensorType
    in_features: int
    bias: torch.Tensor | None = None
    name: str = ""

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
        return self.parts(_PANEL)

    def panel(self, first: int) -> torch.Tensor:
        """The panel that begins at row `first`."""
        return self._decoded(slice(first, first + self.panel_rows))

    def parts(self, elements: int) -> Iterator[torch.Tensor]:
        """Consecutive rows, float32: as many at a time as have so many elements, at least one."""
        rows = max(1, elements // self.in_features)
        for first in range(0, self.out_features, rows):
            yield self._decoded(slice(first, first + rows))

    def _decoded(self, rows: slice) -> torch.Tensor:
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
    """Uploads tensors, or parts of them; see `heddle.extensions.torch.division.claims.PartLoader`.

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
        checks_matmuls: bool = True,
    ) -> None:
        """`mix` says which type each matrix gets. `checks_matmuls`: those of torch; see `tiles.py`.

        The loader calls `progress` with the bytes of the files loaded so far. `threads` of the
        processor quantise; 0: one per core.
        """
        self.matmul_bytes = 0
        self.bytes = 0
        self._checkpoint = checkpoint
        self._device = device
        self._allow_nonfinite = allow_nonfinite
        self._mix = mix
        self._checks_matmuls = checks_matmuls
        self._uploader = Uploader(
            checkpoint,
            device,
            allow_nonfinite=allow_nonfinite,
            progress=progress,
            threads=threads,
        )
        self._matrices: dict[str, Matrix] = {}  # a name has the same part in all calls
        self._checked: set[tuple[int, ...]] = set()

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        device: torch.device,
        config: EngineConfig,
        progress: Callable[[int], None],
        *,
        checks_matmuls: bool,
    ) -> TorchLoader:
        """A loader with these settings."""
        return cls(
            checkpoint,
            device,
            mix=Mix.named(config.quantize),
            allow_nonfinite=config.allow_nonfinite,
            progress=progress,
            threads=config.threads,
            checks_matmuls=checks_matmuls,
        )

    def linear(self, name: str, shape: tuple[int, int], cut: Cut = WHOLE) -> Matrix:
        bias = self._bias(name, shape[:1], cut)
        matrix = replace(self._named(name, shape, cut), bias=bias, name=product_name(name))
        self._check(matrix)
        self.matmul_bytes += matrix.nbytes
        return matrix

    def experts(self, name: str, shape: tuple[int, int, int], cut: Cut = WHOLE) -> Stack:
        tensor = self._tensor(f"{name}.weight", shape)
        own = np.arange(shape[0]) if cut.stack is None else np.asarray(cut.stack)
        rows = np.arange(shape[1]) if cut.rows is None else cut.rows
        below = Cut(rows=(own[:, None] * shape[1] + rows).ravel(), columns=cut.columns)
        bias = self._bias(name, shape[:2], cut)
        whole = self._uploaded(tensor, self._mix.type_of(tensor), below)
        whole = replace(whole, bias=None if bias is None else bias.flatten())
        matrices = (whole.part(place * len(rows), len(rows)) for place in range(len(own)))
        stack = Stack(tuple(matrices), whole)
        self._check(stack.matrices[0])
        self.matmul_bytes += stack.nbytes
        return stack

    def embedding(self, name: str, shape: tuple[int, int], cut: Cut = WHOLE) -> Matrix:
        """A table. If the output matrix is the same tensor, both share its memory."""
        return self._named(name, shape, cut)

    def vector(self, name: str, width: int, cut: Cut = WHOLE) -> torch.Tensor:
        return _rows(self._values(f"{name}.weight", (width,)), cut)

    def filters(
        self, name: str, shape: tuple[int, int], channels: range, cut: Cut = WHOLE
    ) -> Filters:
        values = self._values(f"{name}.weight", shape)[channels.start : channels.stop]
        label = f"{name}.bias"
        if label not in self._checkpoint.tensors:
            return Filters(_rows(values, cut), None)
        bias = self._values(label, shape[:1])[channels.start : channels.stop]
        return Filters(_rows(values, cut), _rows(bias, cut))

    def filled(self, width: int, value: float, cut: Cut = WHOLE) -> torch.Tensor:
        return _rows(torch.full((width,), value, device=self._device), cut)

    def constants(self, name: str, width: int) -> tuple[float, ...]:
        """See `heddle.models.ops.Loader`."""
        return tuple(self.vector(name, width).tolist())

    def _named(self, name: str, shape: tuple[int, int], cut: Cut) -> Matrix:
        """The matrix of a name, which is loaded once."""
        if name not in self._matrices:
            tensor = self._tensor(f"{name}.weight", shape)
            self._matrices[name] = self._uploaded(tensor, self._mix.type_of(tensor), cut)
        return self._matrices[name]

    def _bias(self, name: str, shape: tuple[int, ...], cut: Cut) -> torch.Tensor | None:
        """The bias of matrices; `shape` is (rows,), or (matrices, rows)."""
        bias = f"{name}.bias"
        if bias not in self._checkpoint.tensors or not cut.bias:
            return None
        values = self._values(bias, shape)
        if cut.stack is not None:
            values = values[cut.stack.start : cut.stack.stop]
        return values if cut.rows is None else values[..., torch.from_numpy(cut.rows)]

    def _values(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensor(name, shape)
        return decode(self._uploaded(tensor, tensor.type).fields, tensor.type).reshape(shape)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        tensor = claim(self._checkpoint, name, shape)
        if not tensor.type.is_supported:
            raise unsupported(tensor.type, tensor.label)
        return tensor

    def _uploaded(self, tensor: TensorInfo, kind: TensorType, cut: Cut = WHOLE) -> Matrix:
        """The tensor on the device as type `kind`, or a part; all axes but the last are rows."""
        columns = tensor.shape[-1] if cut.columns is None else len(cut.columns)
        fields = self._uploader.fields(tensor, kind, cut.rows, cut.columns)
        matrix = Matrix(fields, kind, columns)
        self._check_finite(tensor, matrix)
        self.bytes += matrix.nbytes
        return matrix

    def _check_finite(self, tensor: TensorInfo, matrix: Matrix) -> None:
        if self._allow_nonfinite:
            return
        elements = _PANEL if self._device.type == "cpu" else _CHECKED_ON_GPU
        found = [part.isfinite().all(-1) for part in matrix.parts(elements)]
        finite = torch.cat(found)  # the host waits for the device once
        if not finite.all():
            row = int(finite.logical_not().int().argmax())
            raise non_finite_weights(self._checkpoint, tensor, f"row {row}")

    def _check(self, matrix: Matrix) -> None:
        """Check torch's matmuls with panels of these shapes, once for each shape."""
        if not self._checks_matmuls:
            return
        last = (matrix.out_features - 1) // matrix.panel_rows * matrix.panel_rows
        for first in {0, last}:
            panel = matrix.panel(first)
            if panel.shape not in self._checked:
                self._checked.add(panel.shape)
                check_columns(panel.nan_to_num(0.0, 0.0, 0.0), TILE)


def _rows(values: torch.Tensor, cut: Cut) -> torch.Tensor:
    """The rows of values that a cut names."""
    return values if cut.rows is None else values[torch.from_numpy(cut.rows)]
