"""Packs a model's weights for the native core when the model claims them from its checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.weights.checkpoint import claim, non_finite_weights
from heddle.weights.low_rank import expert_name, product_name
from heddle.weights.tensor_types import dequantize, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from heddle.weights.checkpoint import Checkpoint, TensorInfo
    from heddle.weights.mix import Mix

    _Raw = _native.FileBytes | npt.NDArray[np.uint8]


_NO_BIAS = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A packed matrix (out_features, in_features), with the name of its product."""

    matrix: _native.Matrix
    out_features: int
    in_features: int
    name: str


@dataclass(frozen=True, slots=True)
class ExpertsWeight:
    """Packed matrices (out_features, in_features), one for each expert."""

    matrices: tuple[_native.Matrix, ...]
    out_features: int
    in_features: int
    name: str

    @property
    def count(self) -> int:
        """Number of experts."""
        return len(self.matrices)

    def __getitem__(self, expert: int) -> LinearWeight:
        """The matrix of one expert."""
        name = expert_name(self.name, expert)
        return LinearWeight(self.matrices[expert], self.out_features, self.in_features, name)

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.bytes for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class TableWeight:
    """A lookup table of `width` columns, packed like a matrix."""

    matrix: _native.Matrix
    width: int
    name: str


@dataclass(frozen=True, slots=True)
class VectorWeight:
    """A float32 vector."""

    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FiltersWeight:
    """Filters of a convolution, float32 (taps, channels), and biases (channels,) or None."""

    values: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None

    @property
    def taps(self) -> int:
        """Positions that a filter sees."""
        return len(self.values)


class CpuLoader:
    """Packs each tensor when the model claims it; see `heddle.models.ops.Loader`.

    Attributes:
        arena: the memory of all packed weights.
        matmul_bytes: bytes of the matrices that matmuls read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        runtime: _native.Runtime,
        *,
        mix: Mix,
        allow_nonfinite: bool,
        progress: Callable[[int], None],
    ) -> None:
        """`mix` says which type each matrix gets.

        The loader calls `progress` with the bytes of the files packed so far.
        """
        self.arena = _native.Arena()
        self.matmul_bytes = 0
        self._checkpoint = checkpoint
        self._runtime = runtime
        self._mix = mix
        self._allow_nonfinite = allow_nonfinite
        self._progress = progress
        self._packed = 0
        self._tables: dict[str, _native.Matrix] = {}

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._checkpoint.tensors

    def linear(self, name: str, out_features: int, in_features: int) -> LinearWeight:
        tensor = self._tensor(f"{name}.weight", (out_features, in_features))
        bias = f"{name}.bias"
        biased = bias in self._checkpoint.tensors
        matrix = None if biased else self._tables.get(name)
        if matrix is None:
            values = self._values(bias, out_features) if biased else _NO_BIAS
            matrix = self._matrix(tensor, values)
        self.matmul_bytes += matrix.bytes
        return LinearWeight(matrix, out_features, in_features, product_name(name))

    def experts(self, name: str, count: int, out_features: int, in_features: int) -> ExpertsWeight:
        tensor = self._tensor(f"{name}.weight", (count, out_features, in_features))
        bias = f"{name}.bias"
        biased = bias in self._checkpoint.tensors
        biases = self._values(bias, count, out_features) if biased else [_NO_BIAS] * count
        matrices = tuple(
            self._packed_matrix(tensor, raw, (out_features, in_features), biases[expert])
            for expert, raw in enumerate(self._slices(tensor))
        )
        weight = ExpertsWeight(matrices, out_features, in_features, name)
        self.matmul_bytes += weight.nbytes
        return weight

    def embedding(self, name: str, rows: int, width: int) -> TableWeight:
        """Pack a table. If the output matrix is the same tensor, both are one matrix in memory."""
        tensor = self._tensor(f"{name}.weight", (rows, width))
        if name not in self._tables:
            self._tables[name] = self._matrix(tensor, _NO_BIAS)
        return TableWeight(self._tables[name], width, name)

    def vector(self, name: str, width: int) -> VectorWeight:
        return VectorWeight(self._values(f"{name}.weight", width))

    def filters(self, name: str, parts: Sequence[int], taps: int) -> tuple[FiltersWeight, ...]:
        bias, channels = f"{name}.bias", sum(parts)
        biased = bias in self._checkpoint.tensors
        biases = self._values(bias, channels) if biased else None
        columns = self._values(f"{name}.weight", channels, taps).T
        made, first = [], 0
        for count in parts:
            own = slice(first, first + count)
            values = np.ascontiguousarray(columns[:, own])
            made.append(FiltersWeight(values, None if biases is None else biases[own]))
            first += count
        return tuple(made)

    def filled(self, width: int, value: float = 1.0) -> VectorWeight:
        return VectorWeight(np.full(width, value, np.float32))

    def constants(self, name: str, width: int) -> tuple[float, ...]:
        return tuple(self.vector(name, width).values.tolist())

    def _values(self, name: str, *shape: int) -> npt.NDArray[np.float32]:
        tensor = claim(self._checkpoint, name, shape)
        values = dequantize(self._checkpoint.read(name), tensor.type, tensor.shape)
        if not np.isfinite(values).all():
            self._refuse_non_finite(tensor, f"element {np.isfinite(values).argmin()}")
        return np.ascontiguousarray(values, dtype=np.float32)

    def _slices(self, tensor: TensorInfo) -> Iterator[_Raw]:
        """The bytes of each matrix of a stacked tensor."""
        size = tensor.nbytes // tensor.shape[0]
        is_made = not (tensor.has_place or self._checkpoint.reads_parts(tensor.name))
        made = self._checkpoint.read(tensor.name) if is_made else None
        for index in range(tensor.shape[0]):
            if made is not None:
                yield made[index * size : (index + 1) * size]
            elif tensor.has_place:
                place = tensor.place_of_slice(index)
                yield _native.FileBytes(place.descriptor, place.offset, size)
            else:
                yield self._checkpoint.read(tensor.name, index * size, size)

    def _matrix(self, tensor: TensorInfo, bias: npt.NDArray[np.float32]) -> _native.Matrix:
        raw: _Raw
        if tensor.place is None:
            raw = self._checkpoint.read(tensor.name)
        else:
            raw = _native.FileBytes(tensor.place.descriptor, tensor.place.offset, tensor.nbytes)
        rows, columns = tensor.shape
        return self._packed_matrix(tensor, raw, (rows, columns), bias)

    def _packed_matrix(
        self,
        tensor: TensorInfo,
        raw: _Raw,
        shape: tuple[int, int],
        bias: npt.NDArray[np.float32],
    ) -> _native.Matrix:
        """Pack a matrix of `shape` that `raw` holds: the tensor, or a slice of it."""
        rows, columns = shape
        try:
            matrix = _native.Matrix(
                self.arena,
                self._runtime,
                int(self._mix.type_of(tensor)),
                raw,
                rows,
                columns,
                bias,
                stored=int(tensor.type),
            )
        except ValueError as error:
            raise UnsupportedModelError(
                f"tensor {tensor.label}: {error}", param=tensor.label
            ) from error
        except RuntimeError as error:
            self._checkpoint.check_unchanged()
            raise ModelFileError(
                f"{self._checkpoint.path}: tensor {tensor.label} cannot be read: {error}",
                field=tensor.label,
            ) from error
        if matrix.non_finite_row >= 0:
            self._refuse_non_finite(tensor, f"row {matrix.non_finite_row}")
        self._packed += tensor.nbytes * rows * columns // math.prod(tensor.shape)
        self._progress(self._packed)
        return matrix

    def _refuse_non_finite(self, tensor: TensorInfo, where: str) -> None:
        if not self._allow_nonfinite:
            raise non_finite_weights(self._checkpoint, tensor, where)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        tensor = claim(self._checkpoint, name, shape)
        if not tensor.type.is_supported:
            raise unsupported(tensor.type, tensor.label)
        return tensor
