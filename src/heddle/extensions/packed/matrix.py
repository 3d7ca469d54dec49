"""A matrix that a folder stores quantised, and the type as which it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.packed.values import (
    BLOCK,
    encode,
    float4_blocks,
    rounded,
    ternary_blocks,
    with_scales,
)
from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from heddle.extensions.packed.values import Codes, Floats, Integers
    from heddle.weights.huggingface.quantised import Read, Stored
    from heddle.weights.huggingface.safetensors import StoredTensor


_CHUNK_ELEMENTS = 1 << 20
"""Values decoded at a time. The temporaries take some ten bytes a value."""


Decoded = tuple["Integers | Codes | Floats", "Floats | Codes", "Floats | None"]
"""Values (n, columns), their scales, and what is added to the products, if anything.

Scales and offsets are (n, columns) for a matrix that is read as floats, else (n, columns / elements
of a block). Values are codes for F8_E4M3, TQ2_0, MXFP4 and NVFP4. The scales of the last two are
bytes, one for each run of 32 or 16 columns.
"""


class DecodeRows(Protocol):
    """Decodes rows of a matrix."""

    def __call__(self, rows: slice, /) -> Decoded: ...


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix that a folder stores quantised.

    Attributes:
        label: the name of its tensor if it were not quantised.
        type: the type as which it is read.
        shape: (rows, columns).
        parts: the stored tensors that it is made from.
        open: reads the stored tensors, or those that all rows need.
        by_rows: whether some rows take less work to read than all.
    """

    label: str
    type: TensorType
    shape: tuple[int, int]
    parts: tuple[str, ...]
    open: Callable[[Read], DecodeRows]
    by_rows: bool = False

    def __post_init__(self) -> None:
        """Raise ModelFileError if the matrix is empty."""
        if 0 in self.shape:
            raise ModelFileError(f"tensor {self.label} has shape {self.shape}", field=self.label)

    @property
    def nbytes(self) -> int:
        """Size in bytes as `type`."""
        rows, columns = self.shape
        return rows * columns // self.type.block_elements * self.type.block_bytes

    def read(self, read: Read, wanted: range) -> NDArray[np.uint8]:
        """Some bytes of the matrix. `wanted` are their indices.

        Raises:
            UnsupportedModelError: `type` does not hold a value or a scale exactly.
        """
        rows, columns = self.shape
        of_row = self.nbytes // rows
        first, last = wanted.start // of_row, -(-wanted.stop // of_row)
        decode = self.open(read)
        found = np.empty((last - first, of_row), np.uint8)
        step = max(1, _CHUNK_ELEMENTS // columns)
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            found[part.start - first : part.stop - first] = self._encoded(*decode(part))
        skipped = wanted.start - first * of_row
        return found.reshape(-1)[skipped : skipped + len(wanted)]

    def _encoded(
        self, values: Integers | Codes | Floats, scales: Floats | Codes, offsets: Floats | None
    ) -> NDArray[np.uint8]:
        if self.type in (TensorType.F32, TensorType.F16, TensorType.BF16):
            products = np.ascontiguousarray(values * scales, np.float32)
            return rounded(self.type, products if offsets is None else products + offsets)
        if self.type is TensorType.F8_E4M3:
            return with_scales(values.astype(np.uint8, copy=False), scales.astype(np.float32))
        if self.type in (TensorType.MXFP4, TensorType.NVFP4):
            return float4_blocks(self.type, values.astype(np.uint8), scales.astype(np.uint8))
        try:
            floats = scales.astype(np.float32, copy=False)
            if self.type is TensorType.TQ2_0:
                return ternary_blocks(values.astype(np.uint8, copy=False), floats)
            return encode(self.type, values.astype(np.int16), floats, offsets)
        except ValueError as error:
            raise UnsupportedModelError(
                f"tensor {self.label}: {error}; use another form of this model",
                param="quantization_config",
            ) from error


def block_type(bits: int, group: int, dtype: str, *, zero_points: bool) -> TensorType:
    """The type for codes of `bits` bits, with one scale of type `dtype` for `group` columns."""
    if dtype not in ("F16", "BF16") or group % BLOCK or (bits == 8 and zero_points):
        return TensorType.F32
    if bits == 8:
        return TensorType.Q8_0
    return TensorType.Q5_0 if zero_points else TensorType.Q4_0


def spread(scales: Floats, kind: TensorType, columns: int) -> Floats:
    """Scales (n, groups), repeated for each block of `kind`."""
    wanted = columns // kind.block_elements
    return np.repeat(scales, wanted // scales.shape[1], axis=1)


def stems(tensors: Stored, suffix: str) -> list[str]:
    """Names of the modules that have a tensor `suffix`."""
    return [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]


WORDS, INTEGERS, FLOATS = ("I32",), ("I32", "I64"), ("F16", "BF16", "F32")
"""Dtypes of packed integers, of indices and sizes, and of scales."""


def require(
    tensors: Stored, label: str, dtypes: tuple[str, ...], *shape: int | None
) -> StoredTensor:
    """The stored tensor `label`, which must have one of `dtypes`, and `shape`. None: any size.

    Raises:
        ModelFileError: it is missing, or has another dtype or shape.
    """
    found = tensors.get(label)
    if found is None:
        raise ModelFileError(f"tensor {label} is missing; fetch the whole folder", field=label)
    sizes = zip(shape, found.shape, strict=False)
    if len(found.shape) != len(shape) or any(size not in (None, has) for size, has in sizes):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ModelFileError(
            f"tensor {label} has shape {found.shape}; ({wanted}) is required", field=label
        )
    if found.dtype not in dtypes:
        raise ModelFileError(
            f"tensor {label} has dtype {found.dtype}; {' or '.join(dtypes)} is required",
            field=label,
        )
    return found


def group_size(label: str, columns: int, groups: int) -> int:
    """The columns of a group.

    Raises:
        ModelFileError: the groups do not divide the columns. Names the tensor `label` of scales.
    """
    if groups == 0 or columns % groups:
        raise ModelFileError(
            f"tensor {label} has {groups} groups, which do not divide {columns} columns",
            field=label,
        )
    return columns // groups
