"""Canonical tensors that are made from stored ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heddle.weights.huggingface.safetensors import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Raw = NDArray[np.uint8]

MXFP4 = "MXFP4"
_BLOCK = 32


class Stored(Protocol):
    """A tensor as the files have it."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A canonical tensor that is made from stored ones.

    Attributes:
        dtype: `MXFP4`, or the stored dtype.
        shape: of the canonical tensor.
        sources: names of the stored tensors, that of the label first.
        make: the canonical tensor's bytes, from those of the sources.
    """

    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    make: Callable[[list[Raw]], Raw]

    @property
    def label(self) -> str:
        """The files' own name."""
        return self.sources[0]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        elements = prod(self.shape)
        if self.dtype == MXFP4:
            return elements // _BLOCK * (_BLOCK // 2 + 1)
        return elements * DTYPE_BITS[self.dtype] // 8


def rows_of(label: str, stored: Stored, rows: slice, *, transposed: bool) -> MadeTensor:
    """Some rows of each matrix of a stack (experts, rows, columns), or of biases (experts, rows).

    If `transposed`, the file has the matrices transposed.
    """
    bits = np.dtype(f"u{DTYPE_BITS[stored.dtype] // 8}")

    def canonical(values: NDArray[np.generic]) -> NDArray[np.generic]:
        return (values.swapaxes(1, 2) if transposed else values)[:, rows]

    def make(raw: list[Raw]) -> Raw:
        values = raw[0].view(bits).reshape(stored.shape)
        return np.ascontiguousarray(canonical(values)).view(np.uint8).ravel()

    shape = canonical(np.broadcast_to(np.uint8(0), stored.shape)).shape
    return MadeTensor(stored.dtype, shape, (label,), make)
