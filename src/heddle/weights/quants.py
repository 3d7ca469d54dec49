"""What the bytes of a tensor mean: dequantisation to float32 in NumPy.

This is the definition that every kernel is measured against, so it says each format as plainly as
it can. A format is a function from blocks, uint8 (n, block_bytes), to values, float32
(n, block_elements). The layouts are those of ggml's `ggml-common.h`; the order of float32
operations is ggml's too, so values agree to the bit.

Words used below: a block's `d` is its float16 scale and `m` (or `dmin`) its offset; K-quants cut
a block of 256 into sub-blocks with small integer scales of their own, a multiple of `d`.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.errors import UnsupportedModelError
from heddle.weights.gguf.file import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Blocks = NDArray[np.uint8]
    Values = NDArray[np.float32]

# Values decoded at a time: keeps the temporaries, a few times this in bytes, inside the caches.
_CHUNK_ELEMENTS = 1 << 16

# The 16 levels of IQ4_NL and IQ4_XS, spaced like a normal distribution.
_IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def dequantize(data: NDArray[np.uint8], kind: TensorType, shape: tuple[int, ...]) -> Values:
    """The values of a tensor.

    Args:
        data: (nbytes,) uint8, the tensor's rows one after another.
        kind: storage type.
        shape: row-major; the last axis is a whole number of blocks.

    Returns:
        A new float32 array of `shape`.

    Raises:
        UnsupportedModelError: `kind` has no decoder here.
        ValueError: `data` has not the size that `kind` and `shape` ask for.
    """
    decode = _DECODERS.get(kind)
    if decode is None:
        supported = ", ".join(known.name for known in _DECODERS)
        raise UnsupportedModelError(
            f"tensor type {kind.name} is not supported; supported: {supported}", param="type"
        )
    row = shape[-1] if shape else 1
    size = prod(shape) // kind.block_elements * kind.block_bytes
    if row % kind.block_elements or data.shape != (size,):
        raise ValueError(f"{data.shape} bytes are not {kind.name} of shape {shape}")
    blocks = data.reshape(-1, kind.block_bytes)
    values = np.empty((len(blocks), kind.block_elements), np.float32)
    step = max(1, _CHUNK_ELEMENTS // kind.block_elements)
    with np.errstate(over="ignore", invalid="ignore"):  # a scale may be infinite or no number
        for start in range(0, len(blocks), step):
            values[start : start + step] = decode(blocks[start : start + step])
    return values.reshape(shape)


def _float16(raw: Blocks) -> Values:
    return raw.view("<f2").astype(np.float32)


def _nibbles(raw: Blocks) -> Blocks:
    """The low halves of all bytes of the last axis, then the high halves."""
    return np.concatenate([raw & 0x0F, raw >> 4], axis=-1)


def _bit_planes(raw: Blocks, bits: int) -> Blocks:
    """Each byte's fields of `bits` bits, lowest first: (..., b) to (..., 8 // bits, b)."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return raw[..., None, :] >> shifts & np.uint8((1 << bits) - 1)


# --- floats --------------------------------------------------------------------------------------


def _f32(blocks: Blocks) -> Values:
    return blocks.view("<f4").astype(np.float32)


def _bf16(blocks: Blocks) -> Values:
    """bfloat16 is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


# --- blocks of 32 with one scale -----------------------------------------------------------------


def _q4_0(blocks: Blocks) -> Values:
    """d, then 16 bytes of nibbles; d * (q - 8)."""
    d, q = _float16(blocks[:, :2]), _nibbles(blocks[:, 2:])
    return d * (q.astype(np.float32) - 8)


def _q4_1(blocks: Blocks) -> Values:
    """d, m, then 16 bytes of nibbles; d * q + m."""
    d, m = _float16(blocks[:, :2]), _float16(blocks[:, 2:4])
    return d * _nibbles(blocks[:, 4:]) + m


def _five_bits(raw: Blocks) -> Blocks:
    """4 bytes of fifth bits, one per element, then 16 bytes of nibbles."""
    fifth = np.unpackbits(raw[:, :4], axis=-1, bitorder="little")
    return _nibbles(raw[:, 4:]) | fifth << np.uint8(4)


def _q5_0(blocks: Blocks) -> Values:
    """d, then five bits an element; d * (q - 16)."""
    d, q = _float16(blocks[:, :2]), _five_bits(blocks[:, 2:])
    return d * (q.astype(np.float32) - 16)


def _q5_1(blocks: Blocks) -> Values:
    """d, m, then five bits an element; d * q + m."""
    d, m = _float16(blocks[:, :2]), _float16(blocks[:, 2:4])
    return d * _five_bits(blocks[:, 4:]) + m


def _q8_0(blocks: Blocks) -> Values:
    """d, then 32 signed bytes; d * q."""
    return _float16(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


def _iq4_nl(blocks: Blocks) -> Values:
    """d, then 16 bytes of nibbles that index the levels; d * level."""
    return _float16(blocks[:, :2]) * _IQ4_LEVELS[_nibbles(blocks[:, 2:])]


# --- K-quants: blocks of 256 ---------------------------------------------------------------------


def _q2_k(blocks: Blocks) -> Values:
    """16 bytes of scales (low nibble) and mins (high), 64 bytes of 2-bit values, d, dmin.

    d * scale * q - dmin * min over 16 sub-blocks of 16.
    """
    small = _nibbles(blocks[:, :16])
    d, dmin = _float16(blocks[:, 80:82]), _float16(blocks[:, 82:84])
    q = _bit_planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scale, offset = d * small[:, :16], dmin * small[:, 16:]
    return (scale[..., None] * q - offset[..., None]).reshape(-1, 256)


def _q3_k(blocks: Blocks) -> Values:
    """32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d.

    d * (scale - 32) * (q - 4) over 16 sub-blocks of 16. Of the scales, eight bytes hold the low
    nibbles and four bytes the upper two bits.
    """
    low = _nibbles(blocks[:, 96:104])
    high = _bit_planes(blocks[:, 104:108], 2).reshape(-1, 16)
    scale = _float16(blocks[:, 108:110]) * ((low | high << 4).astype(np.float32) - 32)
    q = _bit_planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    third = _bit_planes(blocks[:, :32], 1).reshape(-1, 16, 16)
    return (scale[..., None] * ((q | third << 2).astype(np.float32) - 4)).reshape(-1, 256)


def _scales_and_mins(blocks: Blocks) -> tuple[Values, Values]:
    """The head of Q4_K and Q5_K: d, dmin, then 12 bytes of eight 6-bit scales and mins.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 mins 0-3 in their low six bits; bytes 8-11 hold the
    low nibbles of scales and mins 4-7, whose upper two bits are those of bytes 0-3 and 4-7.

    Returns:
        d * scale and dmin * min, each (n, 8, 1).
    """
    d, dmin = _float16(blocks[:, :2]), _float16(blocks[:, 2:4])
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = np.concatenate([first & 63, third & 0x0F | first >> 6 << 4], axis=-1)
    offset = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return (d * scale)[..., None], (dmin * offset)[..., None]


def _q4_k(blocks: Blocks) -> Values:
    """Scales and mins, then 128 bytes of nibbles, 32 at a time.

    d * scale * q - dmin * min over 8 sub-blocks of 32.
    """
    scale, offset = _scales_and_mins(blocks)
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (scale * q - offset).reshape(-1, 256)


def _q5_k(blocks: Blocks) -> Values:
    """Scales and mins, 32 bytes of fifth bits (bit i for sub-block i), then nibbles as in Q4_K."""
    scale, offset = _scales_and_mins(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    q = low | _bit_planes(blocks[:, 16:48], 1) << 4
    return (scale * q - offset).reshape(-1, 256)


def _q6_k(blocks: Blocks) -> Values:
    """128 bytes of nibbles, 64 bytes of upper two bits, 16 signed scales, d.

    d * scale * (q - 32) over 16 sub-blocks of 16.
    """
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    high = _bit_planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scale = _float16(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)
    return (scale[..., None] * ((low | high << 4).astype(np.float32) - 32)).reshape(-1, 256)


def _iq4_xs(blocks: Blocks) -> Values:
    """d, 2 bytes of upper two scale bits, 4 bytes of lower scale nibbles, nibbles of levels.

    d * (scale - 32) * level over 8 sub-blocks of 32.
    """
    high = blocks[:, 2:4].view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = _nibbles(blocks[:, 4:8, None]).reshape(-1, 8)
    scale = _float16(blocks[:, :2]) * ((low | high << 4).astype(np.float32) - 32)
    levels = _IQ4_LEVELS[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    return (scale[..., None] * levels).reshape(-1, 256)


_DECODERS: dict[TensorType, Callable[[Any], Values]] = {
    TensorType.F32: _f32,
    TensorType.F16: _float16,
    TensorType.BF16: _bf16,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q2_K: _q2_k,
    TensorType.Q3_K: _q3_k,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
    TensorType.IQ4_NL: _iq4_nl,
    TensorType.IQ4_XS: _iq4_xs,
}
