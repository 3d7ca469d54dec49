"""The table of tensor types: how rows of numbers are stored in a model file.

Each type of GGUF has a row, and each other type that Heddle holds in memory. A type with a decoder
is supported: its matrices run in the reference and in the native kernels, whose table
(`native/formats.h`) has a row for it too. Everything else is derived from the two tables.
CONTRIBUTING names the files of a new type.
"""

from __future__ import annotations

from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, Self

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.weights import quants

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Decoder = Callable[[quants.Blocks], quants.Values]

_OWN = 1000
"""The first number of types that GGUF lacks."""

# Values decoded at a time. The temporaries take a few times as many bytes, and fit in the caches.
_CHUNK_ELEMENTS = 1 << 16


class TensorType(IntEnum):
    """A tensor type. Its value is its number in GGUF, or from 1000 on if GGUF lacks it.

    Attributes:
        block_elements: values in a block. The length of a row is a multiple of this.
        block_bytes: bytes of a block.
        decode: reference decoder from blocks to values; None if the type is not supported.
    """

    block_elements: int
    block_bytes: int
    decode: Decoder | None

    def __new__(
        cls, number: int, block_elements: int, block_bytes: int, decode: Decoder | None = None
    ) -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.block_elements = block_elements
        member.block_bytes = block_bytes
        member.decode = decode
        return member

    F32 = 0, 1, 4, quants.f32
    F16 = 1, 1, 2, quants.float16
    Q4_0 = 2, 32, 18, quants.q4_0
    Q4_1 = 3, 32, 20, quants.q4_1
    Q5_0 = 6, 32, 22, quants.q5_0
    Q5_1 = 7, 32, 24, quants.q5_1
    Q8_0 = 8, 32, 34, quants.q8_0
    Q8_1 = 9, 32, 36
    Q2_K = 10, 256, 84, quants.q2_k
    Q3_K = 11, 256, 110, quants.q3_k
    Q4_K = 12, 256, 144, quants.q4_k
    Q5_K = 13, 256, 176, quants.q5_k
    Q6_K = 14, 256, 210, quants.q6_k
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66, quants.iq2_xxs
    IQ2_XS = 17, 256, 74, quants.iq2_xs
    IQ3_XXS = 18, 256, 98, quants.iq3_xxs
    IQ1_S = 19, 256, 50, quants.iq1_s
    IQ4_NL = 20, 32, 18, quants.iq4_nl
    IQ3_S = 21, 256, 110, quants.iq3_s
    IQ2_S = 22, 256, 82, quants.iq2_s
    IQ4_XS = 23, 256, 136, quants.iq4_xs
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56, quants.iq1_m
    BF16 = 30, 1, 2, quants.bf16
    TQ1_0 = 34, 256, 54, quants.tq1_0
    TQ2_0 = 35, 256, 66, quants.tq2_0
    MXFP4 = 39, 32, 17, quants.mxfp4
    NVFP4 = 40, 64, 36, quants.nvfp4
    Q1_0 = 41, 128, 18, quants.q1_0
    F8_E4M3 = _OWN, 64, 68, quants.f8_e4m3

    @property
    def is_supported(self) -> bool:
        """Whether tensors of this type can be read and run."""
        return self.decode is not None

    @property
    def is_in_gguf(self) -> bool:
        """Whether GGUF files may have tensors of this type."""
        return self < _OWN

    @property
    def is_float(self) -> bool:
        """Whether each value is a float, with or without a scale for several values."""
        return self.block_elements == 1 or self is TensorType.F8_E4M3

    @classmethod
    def supported(cls) -> tuple[TensorType, ...]:
        """The supported types, ordered by number."""
        return tuple(kind for kind in cls if kind.is_supported)


def unsupported(kind: TensorType, tensor: str | None = None) -> UnsupportedModelError:
    """The error for a type that is not supported. `tensor` is the tensor's name, if known."""
    names = ", ".join(known.name for known in TensorType.supported())
    what = f"tensor type {kind.name}" if tensor is None else f"tensor {tensor} of type {kind.name}"
    return UnsupportedModelError(
        f"{what} is not supported; supported: {names}. Choose another file of this model",
        param=tensor or "type",
    )


def dequantize(data: NDArray[np.uint8], kind: TensorType, shape: tuple[int, ...]) -> quants.Values:
    """The values of a tensor.

    Args:
        data: (nbytes,) uint8, the tensor's rows one after another.
        kind: storage type.
        shape: row-major; the last axis is a multiple of a block.

    Returns:
        A new float32 array of `shape`.

    Raises:
        UnsupportedModelError: `kind` is not supported.
        ValueError: the size of `data` does not match `kind` and `shape`.
    """
    decode = kind.decode
    if decode is None:
        raise unsupported(kind)
    row = shape[-1] if shape else 1
    size = prod(shape) // kind.block_elements * kind.block_bytes
    if row % kind.block_elements or data.shape != (size,):
        raise ValueError(f"{data.shape} bytes are not {kind.name} of shape {shape}")
    blocks = data.reshape(-1, kind.block_bytes)
    values = np.empty((len(blocks), kind.block_elements), np.float32)
    step = max(1, _CHUNK_ELEMENTS // kind.block_elements)
    with np.errstate(over="ignore", invalid="ignore"):  # a scale may be infinite or NaN
        for start in range(0, len(blocks), step):
            values[start : start + step] = decode(blocks[start : start + step])
    return values.reshape(shape)
