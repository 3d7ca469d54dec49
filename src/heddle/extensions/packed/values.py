"""Values of packed weights: integers in words, scales, and the blocks that hold both exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.weights.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int16]
    Codes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

BLOCK = 32
"""Columns of a block of Q4_0, Q5_0 and Q8_0."""

_SMALLEST = {TensorType.Q4_0: -8, TensorType.Q5_0: -16, TensorType.Q8_0: -128}
"""The value of code 0. The codes of a type have 4, 5 or 8 bits."""

_LARGEST = {TensorType.Q4_0: 7, TensorType.Q5_0: 15, TensorType.Q8_0: 127}


def unpack(words: NDArray[np.int32], bits: int, axis: int, order: Sequence[int] = ()) -> Integers:
    """The unsigned integers of `bits` bits in 32-bit words, the lowest bits first.

    Args:
        words: int32, of any shape.
        bits: a divisor of 32.
        axis: the axis along which a word holds several integers.
        order: for each of these integers, its place among the bits; empty: ascending.

    Returns:
        int16, `axis` longer by a factor of 32 / `bits`.
    """
    words = np.moveaxis(words, axis, -1)
    places = order or range(32 // bits)
    unsigned = words.view(np.uint32)[..., None] >> np.array([bits * i for i in places], np.uint32)
    values = (unsigned & np.uint32((1 << bits) - 1)).astype(np.int16)
    return np.moveaxis(values.reshape(*words.shape[:-1], -1), -1, axis)


def encode(kind: TensorType, values: Integers, scales: Floats) -> NDArray[np.uint8]:
    """Rows of blocks with the values `values` * `scales`, as a GGUF file stores them.

    Args:
        kind: Q4_0, Q5_0 or Q8_0.
        values: (rows, columns), columns a multiple of 32.
        scales: (rows, columns / 32).

    Returns:
        (rows, bytes of a row) uint8.

    Raises:
        ValueError: `kind` cannot hold a value or a scale exactly.
    """
    low, high = _SMALLEST[kind], _LARGEST[kind]
    if values.size and not (values.min() >= low and values.max() <= high):
        raise ValueError(f"{values.min()} to {values.max()} do not fit {kind.name}")
    halves = scales.astype(np.float16)
    if not np.array_equal(halves.astype(np.float32), scales, equal_nan=True):
        wrong = scales[halves.astype(np.float32) != scales][0]
        raise ValueError(f"the scale {wrong:g} is not exact in 16 bits")
    blocks = values.reshape(-1, BLOCK)
    parts = [halves.reshape(-1, 1).view(np.uint8)]
    if kind is TensorType.Q8_0:
        parts.append(blocks.astype(np.int8).view(np.uint8))
    else:
        codes = (blocks - low).astype(np.uint8)
        if kind is TensorType.Q5_0:
            parts.append(np.packbits(codes >> 4, axis=1, bitorder="little"))
        parts.append((codes[:, :16] & 15 | codes[:, 16:] << 4).astype(np.uint8))
    return np.concatenate(parts, axis=1).reshape(len(values), -1)


def with_scales(codes: Codes, scales: Floats) -> NDArray[np.uint8]:
    """Rows of F8_E4M3: before each run of `codes` (rows, columns), its scale (rows, runs)."""
    rows, runs = scales.shape
    stored = np.ascontiguousarray(scales, "<f4").view(np.uint8).reshape(rows, runs, 4)
    return np.concatenate([stored, codes.reshape(rows, runs, -1)], axis=2).reshape(rows, -1)
