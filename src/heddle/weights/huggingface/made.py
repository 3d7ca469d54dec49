"""Canonical tensors that are made from stored ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Raw = NDArray[np.uint8]

MXFP4 = "MXFP4"


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
        dtype: the name of a type of tensors: `MXFP4`, or that of the stored tensor.
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
        kind = TensorType[self.dtype]
        return prod(self.shape) // kind.block_elements * kind.block_bytes
