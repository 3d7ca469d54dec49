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

_SMALLEST = {
    **{TensorType.Q4_0: -8, TensorType.Q5_0: -16, TensorType.Q8_0: -128},
    **{TensorType.Q4_1: 0, TensorType.Q5_1: 0},
}
"""The value of code 0. The codes of a type have 4, 5 or 8 bits."""

_LARGEST = {
    **{TensorType.Q4_0: 7, TensorType.Q5_0: 15, TensorType.Q8_0: 127},
    **{TensorType.Q4_1: 15, TensorType.Q5_1: 31},
}


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


def unpack_bits(words: NDArray[np.uint32], bits: int) -> Codes:
    """The unsigned integers of `bits` bits, 8 or less, in rows of 32-bit words (..., words).

    The bits of a row run on from word to word, the lowest first. All of them are used.
    """
    raw = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = raw[..., None] >> shifts & np.uint8((1 << bits) - 1)
        return codes.reshape(*raw.shape[:-1], -1)
    single = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*raw.shape[:-1], -1, bits)
    return np.packbits(single, axis=-1, bitorder="little")[..., 0]


def are_halves(values: Floats) -> bool:
    """Whether 16 bits hold all values exactly."""
    with np.errstate(over="ignore"):
        return np.array_equal(values.astype(np.float16).astype(np.float32), values)


def encode(
    kind: TensorType, values: Integers, scales: Floats, offsets: Floats | None = None
) -> NDArray[np.uint8]:
    """Rows of blocks with the values `values` * `scales` + `offsets`, as a GGUF file stores them.

    Args:
        kind: Q4_0, Q5_0 or Q8_0; with offsets, Q4_1 or Q5_1.
        values: (rows, columns), columns a multiple of 32.
        scales: (rows, columns / 32).
        offsets: (rows, columns / 32).

    Returns:
        (rows, bytes of a row) uint8.

    Raises:
        ValueError: `kind` cannot hold a value or a scale exactly.
    """
    low, high = _SMALLEST[kind], _LARGEST[kind]
    if values.size and not (values.min() >= low and values.max() <= high):
        raise ValueError(f"{values.min()} to {values.max()} do not fit {kind.name}")
    halves = _exact_halves(scales)
    blocks = values.reshape(-1, BLOCK)
    parts = [halves.reshape(-1, 1).view(np.uint8)]
    if offsets is not None:
        parts.append(offsets.astype(np.float16).reshape(-1, 1).view(np.uint8))
    if kind is TensorType.Q8_0:
        parts.append(blocks.astype(np.int8).view(np.uint8))
    else:
        codes = (blocks - low).astype(np.uint8)
        if kind in (TensorType.Q5_0, TensorType.Q5_1):
            parts.append(np.packbits(codes >> 4, axis=1, bitorder="little"))
        parts.append((codes[:, :16] & 15 | codes[:, 16:] << 4).astype(np.uint8))
    return np.concatenate(parts, axis=1).reshape(len(values), -1)


def _exact_halves(scales: Floats) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    if not np.array_equal(halves.astype(np.float32), scales, equal_nan=True):
        wrong = scales[halves.astype(np.float32) != scales][0]
        raise ValueError(f"the scale {wrong:g} is not exact in 16 bits")
    return halves


def ternary_blocks(codes: Codes, scales: Floats) -> NDArray[np.uint8]:
    """Rows of TQ2_0 with the values (`codes` - 1) * `scales`. Codes are 0, 1 and 2.

    Args:
        codes: (rows, columns), columns a multiple of 256.
        scales: (rows, columns / 256).

    Raises:
        ValueError: 16 bits do not hold a scale exactly.
    """
    halves = _exact_halves(scales).reshape(-1, 1).view(np.uint8)
    planes = codes.reshape(-1, 2, 4, 32) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    packed = np.bitwise_or.reduce(planes, axis=2).reshape(-1, 64)
    return np.concatenate([packed, halves], axis=1).reshape(len(codes), -1)


def with_scales(codes: Codes, scales: Floats) -> NDArray[np.uint8]:
    """Rows of F8_E4M3: before each run of `codes` (rows, columns), its scale (rows, runs)."""
    rows, runs = scales.shape
    stored = np.ascontiguousarray(scales, "<f4").view(np.uint8).reshape(rows, runs, 4)
    return np.concatenate([stored, codes.reshape(rows, runs, -1)], axis=2).reshape(rows, -1)


def float4_blocks(kind: TensorType, codes: Codes, scales: Codes) -> NDArray[np.uint8]:
    """Rows of MXFP4 or NVFP4, from codes of E2M1 (rows, columns) and bytes of their scales.

    A block has the scales of its runs of 32 or 16 columns, and then for each run a nibble of its
    first and of its second half in one byte.
    """
    run = 32 if kind is TensorType.MXFP4 else 16
    blocks = codes.shape[1] // kind.block_elements
    halves = codes.reshape(len(codes), blocks, -1, 2, run // 2)
    nibbles = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(len(codes), blocks, -1)
    parts = [scales.reshape(len(codes), blocks, -1), nibbles]
    return np.concatenate(parts, axis=2).reshape(len(codes), -1)


def rounded(kind: TensorType, values: Floats) -> NDArray[np.uint8]:
    """Rows of F32, F16 or BF16: the nearest numbers, of two that are equally near the even one."""
    if kind is TensorType.F32:
        return values.view(np.uint8)
    if kind is TensorType.F16:
        with np.errstate(over="ignore"):
            return values.astype("<f2").view(np.uint8)
    bits = values.view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    nearest = np.where(np.isnan(values), bits | np.uint32(0x400000), nearest)
    return (nearest >> 16).astype("<u2").view(np.uint8)
