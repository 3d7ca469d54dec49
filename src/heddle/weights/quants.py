"""The reference decoders of all tensor types, in NumPy float32.

All kernels are tested against these functions, so they are written as plainly as possible. A
decoder takes blocks, uint8 (n, block_bytes), and returns values, float32 (n, block_elements). The
table in `tensor_types.py` names them. The layouts are those of ggml's `ggml-common.h`. The float32
operations have ggml's order, so values agree to the bit.

Names used below: `d` is the float16 scale of a block and `m` (or `dmin`) its offset. K-quants
divide a block of 256 into sub-blocks. Each sub-block has a small integer scale, in multiples of
`d`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Blocks = NDArray[np.uint8]
    Values = NDArray[np.float32]

# The 16 levels of IQ4_NL and IQ4_XS, spaced like a normal distribution.
_IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)

# The 16 values of E2M1, a float of 4 bits, doubled; the sign is the highest bit.
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def float16(raw: Blocks) -> Values:
    return raw.view("<f2").astype(np.float32)


def _nibbles(raw: Blocks) -> Blocks:
    """The low halves of all bytes of the last axis, then the high halves."""
    return np.concatenate([raw & 0x0F, raw >> 4], axis=-1)


def _bit_planes(raw: Blocks, bits: int) -> Blocks:
    """Each byte's fields of `bits` bits, lowest first: (..., b) to (..., 8 // bits, b)."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return raw[..., None, :] >> shifts & np.uint8((1 << bits) - 1)


# --- floats --------------------------------------------------------------------------------------


def f32(blocks: Blocks) -> Values:
    return blocks.view("<f4").astype(np.float32)


def bf16(blocks: Blocks) -> Values:
    """bfloat16 is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


# --- blocks of 32 with one scale -----------------------------------------------------------------


def q4_0(blocks: Blocks) -> Values:
    """d, then 16 bytes of nibbles; d * (q - 8)."""
    d, q = float16(blocks[:, :2]), _nibbles(blocks[:, 2:])
    return d * (q.astype(np.float32) - 8)


def q4_1(blocks: Blocks) -> Values:
    """d, m, then 16 bytes of nibbles; d * q + m."""
    d, m = float16(blocks[:, :2]), float16(blocks[:, 2:4])
    return d * _nibbles(blocks[:, 4:]) + m


def _five_bits(raw: Blocks) -> Blocks:
    """4 bytes of fifth bits, one per element, then 16 bytes of nibbles."""
    fifth = np.unpackbits(raw[:, :4], axis=-1, bitorder="little")
    return _nibbles(raw[:, 4:]) | fifth << np.uint8(4)


def q5_0(blocks: Blocks) -> Values:
    """d, then five bits an element; d * (q - 16)."""
    d, q = float16(blocks[:, :2]), _five_bits(blocks[:, 2:])
    return d * (q.astype(np.float32) - 16)


def q5_1(blocks: Blocks) -> Values:
    """d, m, then five bits an element; d * q + m."""
    d, m = float16(blocks[:, :2]), float16(blocks[:, 2:4])
    return d * _five_bits(blocks[:, 4:]) + m


def q8_0(blocks: Blocks) -> Values:
    """d, then 32 signed bytes; d * q."""
    return float16(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


def iq4_nl(blocks: Blocks) -> Values:
    """d, then 16 bytes of nibbles that index the levels; d * level."""
    return float16(blocks[:, :2]) * _IQ4_LEVELS[_nibbles(blocks[:, 2:])]


def mxfp4(blocks: Blocks) -> Values:
    """e, then 16 bytes of nibbles; 2**(e - 127) * E2M1.

    Byte e is an E8M0 number. 255 is NaN, as OCP's specification of MX formats says; ggml reads it
    as 2**128. The scale is halved and E2M1 doubled, so that the smallest scale does not become 0.
    """
    e = blocks[:, :1].astype(np.int32)
    half = np.where(e == 255, np.float32(np.nan), np.ldexp(np.float32(1), e - 128))
    return half * _E2M1_DOUBLED[_nibbles(blocks[:, 1:])]


# --- ternary: blocks of 256 with one scale -------------------------------------------------------


def tq2_0(blocks: Blocks) -> Values:
    """64 bytes of 2-bit values, then d; d * (q - 1)."""
    q = _bit_planes(blocks[:, :64].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return float16(blocks[:, 64:]) * (q.astype(np.float32) - 1)


# --- K-quants: blocks of 256 ---------------------------------------------------------------------


def q2_k(blocks: Blocks) -> Values:
    """16 bytes of scales (low nibble) and mins (high), 64 bytes of 2-bit values, d, dmin.

    d * scale * q - dmin * min over 16 sub-blocks of 16.
    """
    small = _nibbles(blocks[:, :16])
    d, dmin = float16(blocks[:, 80:82]), float16(blocks[:, 82:84])
    q = _bit_planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scale, offset = d * small[:, :16], dmin * small[:, 16:]
    return (scale[..., None] * q - offset[..., None]).reshape(-1, 256)


def q3_k(blocks: Blocks) -> Values:
    """32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d.

    d * (scale - 32) * (q - 4) over 16 sub-blocks of 16. Eight bytes hold the low nibbles of the
    scales, four bytes their upper two bits.
    """
    low = _nibbles(blocks[:, 96:104])
    high = _bit_planes(blocks[:, 104:108], 2).reshape(-1, 16)
    scale = float16(blocks[:, 108:110]) * ((low | high << 4).astype(np.float32) - 32)
    q = _bit_planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    third = _bit_planes(blocks[:, :32], 1).reshape(-1, 16, 16)
    return (scale[..., None] * ((q | third << 2).astype(np.float32) - 4)).reshape(-1, 256)


def _scales_and_mins(blocks: Blocks) -> tuple[Values, Values]:
    """The head of Q4_K and Q5_K: d, dmin, then 12 bytes of eight 6-bit scales and mins.

    The low six bits of bytes 0-3 hold scales 0-3, those of bytes 4-7 mins 0-3. Bytes 8-11 hold the
    low nibbles of scales and mins 4-7. The upper two bits of bytes 0-3 and 4-7 are the upper two
    bits of these scales and mins.

    Returns:
        d * scale and dmin * min, each (n, 8, 1).
    """
    d, dmin = float16(blocks[:, :2]), float16(blocks[:, 2:4])
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = np.concatenate([first & 63, third & 0x0F | first >> 6 << 4], axis=-1)
    offset = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return (d * scale)[..., None], (dmin * offset)[..., None]


def q4_k(blocks: Blocks) -> Values:
    """Scales and mins, then 128 bytes of nibbles, 32 at a time.

    d * scale * q - dmin * min over 8 sub-blocks of 32.
    """
    scale, offset = _scales_and_mins(blocks)
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (scale * q - offset).reshape(-1, 256)


def q5_k(blocks: Blocks) -> Values:
    """Scales and mins, 32 bytes of fifth bits (bit i for sub-block i), then nibbles as in Q4_K."""
    scale, offset = _scales_and_mins(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    q = low | _bit_planes(blocks[:, 16:48], 1) << 4
    return (scale * q - offset).reshape(-1, 256)


def q6_k(blocks: Blocks) -> Values:
    """128 bytes of nibbles, 64 bytes of upper two bits, 16 signed scales, d.

    d * scale * (q - 32) over 16 sub-blocks of 16.
    """
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    high = _bit_planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scale = float16(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)
    return (scale[..., None] * ((low | high << 4).astype(np.float32) - 32)).reshape(-1, 256)


def iq4_xs(blocks: Blocks) -> Values:
    """d, 2 bytes of upper two scale bits, 4 bytes of lower scale nibbles, nibbles of levels.

    d * (scale - 32) * level over 8 sub-blocks of 32.
    """
    high = blocks[:, 2:4].view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = _nibbles(blocks[:, 4:8, None]).reshape(-1, 8)
    scale = float16(blocks[:, :2]) * ((low | high << 4).astype(np.float32) - 32)
    levels = _IQ4_LEVELS[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    return (scale[..., None] * levels).reshape(-1, 256)
