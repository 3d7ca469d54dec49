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

from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.weights.grids import grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Blocks = NDArray[np.uint8]
    Values = NDArray[np.float32]

# The 16 levels of IQ4_NL and IQ4_XS, spaced like a normal distribution.
IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)

# The 16 values of E2M1, a float of 4 bits, doubled; the sign is the highest bit.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


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


def f8_e4m3(blocks: Blocks) -> Values:
    """d in float32, then 64 E4M3 numbers; d * number. GGUF has no such type."""
    return blocks[:, :4].view("<f4") * e4m3(blocks[:, 4:])


def e4m3(raw: Blocks) -> Values:
    """E4M3 numbers: a sign, 4 bits of exponent with bias 7, 3 of fraction; 0x7F and 0xFF are NaN.

    Micikevicius et al. 2022, arXiv:2209.05433.
    """
    return _E4M3[raw]


def _e4m3_numbers() -> Values:
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    magnitude = np.where(exponent > 0, normal, np.ldexp(fraction / 8, -6))
    magnitude[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


_E4M3 = _e4m3_numbers()


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
    return float16(blocks[:, :2]) * IQ4_LEVELS[_nibbles(blocks[:, 2:])]


def mxfp4(blocks: Blocks) -> Values:
    """e, then 16 bytes of nibbles; 2**(e - 127) * E2M1.

    The scale is halved and E2M1 doubled, so that the smallest scale does not become 0.
    """
    return halved_e8m0(blocks[:, :1]) * E2M1_DOUBLED[_nibbles(blocks[:, 1:])]


def halved_e8m0(e: Blocks) -> Values:
    """2**(e - 128), half of the E8M0 number of byte e.

    255 is NaN, as OCP's specification of MX formats says; ggml reads it as 2**128.
    """
    power = np.ldexp(np.float32(1), e.astype(np.int32) - 128)
    return np.where(e == 255, np.float32(np.nan), power)


# --- signs and ternary digits: blocks of 128 or 256 with one scale -------------------------------


def q1_0(blocks: Blocks) -> Values:
    """d, then 128 bits, the lowest of a byte first; d for a one, -d for a zero.

    >>> block = bytes.fromhex("0038" + "05" + 14 * "00" + "80")  # d is 0.5
    >>> values = q1_0(np.frombuffer(block, np.uint8)[None])[0].tolist()
    >>> values[:4], values[-3:]
    ([0.5, -0.5, 0.5, -0.5], [-0.5, -0.5, 0.5])
    """
    bits = np.unpackbits(blocks[:, 2:], axis=-1, bitorder="little")
    return float16(blocks[:, :2]) * (2 * bits.astype(np.float32) - 1)


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
    levels = IQ4_LEVELS[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    return (scale[..., None] * levels).reshape(-1, 256)


def tq1_0(blocks: Blocks) -> Values:
    """48 bytes of five ternary digits each, 4 bytes of four, d; d * (digit - 1).

    Digit k of a byte is the upper part of (byte * 3**k modulo 256) * 3.
    """
    runs = (blocks[:, :32], blocks[:, 32:48], blocks[:, 48:52])
    digits = []
    for run, count in zip(runs, (5, 5, 4), strict=True):
        powers = np.array([1, 3, 9, 27, 81], np.uint8)[:count, None]
        fractions = (run[:, None, :] * powers).astype(np.uint16)
        digits.append((fractions * 3 >> 8).reshape(len(blocks), -1))
    return float16(blocks[:, 52:]) * (np.concatenate(digits, axis=-1).astype(np.float32) - 1)


def nvfp4(blocks: Blocks) -> Values:
    """Four E4M3 scales without sign, then 8 bytes of nibbles for each; scale * E2M1.

    The scale is halved and E2M1 doubled.
    """
    nibbles = _nibbles(blocks[:, 4:].reshape(-1, 4, 8))
    values: Values = halved_unsigned_e4m3(blocks[:, :4])[..., None] * E2M1_DOUBLED[nibbles]
    return values.reshape(-1, 64)


def halved_unsigned_e4m3(raw: Blocks) -> Values:
    """Half of E4M3 numbers without their sign. ggml reads 0x7F, E4M3's NaN, as 0."""
    e = np.where(raw == 0x7F, 0, raw & 0x7F).astype(np.int32)
    exponent, fraction = e >> 3, (e & 7).astype(np.float32)
    normal = np.ldexp(1 + fraction / np.float32(8), exponent - 8)
    half = np.where(exponent == 0, fraction * np.float32(2.0**-10), normal)
    return half.astype(np.float32)


# --- grids: blocks of 256 whose values are points of a grid, with signs ---------------------------


def _signs(bits: NDArray[np.unsignedinteger[Any]], stored: int) -> Values:
    """1 or -1 for the bits of each number, (..., n) to (..., n, 8).

    If 7 are stored, the number of minus signs is even, and the eighth follows.
    """
    minus = bits[..., None] >> np.arange(stored, dtype=bits.dtype) & 1
    if stored == 7:
        minus = np.concatenate([minus, minus.sum(axis=-1, keepdims=True) & 1], axis=-1)
    return 1 - 2 * minus.astype(np.float32)


def _halves(raw: Blocks) -> NDArray[np.float32]:
    """The low and the high half of each byte in turn."""
    return np.stack([raw & 0x0F, raw >> 4], axis=-1).reshape(len(raw), -1).astype(np.float32)


def _at_points(name: str, points: NDArray[Any], signs: Values, scale: Values) -> Values:
    """scale * point * sign. Scales (n, s) belong to 256 / s consecutive values."""
    values = grid(name)[points].reshape(len(points), -1) * signs.reshape(len(points), -1)
    scaled: Values = scale[..., None] * values.reshape(*scale.shape, -1)
    return scaled.reshape(len(points), 256)


def _words(raw: Blocks) -> tuple[Values, Values]:
    """Scales and signs in words of 32 bits: the upper four bits, and four times seven bits."""
    words = np.ascontiguousarray(raw).view("<u4")
    seven = words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127
    return (words >> 28).astype(np.float32), _signs(seven.astype(np.uint8), 7)


def iq2_xxs(blocks: Blocks) -> Values:
    """d, then for 32 values four points, and a word of scale and signs.

    d * (scale + 1/2) / 4 * point * sign.
    """
    groups = blocks[:, 2:].reshape(-1, 8, 8)
    scale, signs = _words(groups[..., 4:].reshape(len(blocks), -1))
    step = float16(blocks[:, :2]) * (np.float32(0.5) + scale) * np.float32(0.25)
    return _at_points("IQ2_XXS", groups[..., :4], signs, step)


def iq2_xs(blocks: Blocks) -> Values:
    """d, 32 numbers of 16 bits (9 of a point, 7 of signs), 16 scales of 4 bits; as in IQ2_XXS."""
    bits = blocks[:, 2:66].copy().view("<u2")
    step = float16(blocks[:, :2]) * (np.float32(0.5) + _halves(blocks[:, 66:])) * np.float32(0.25)
    return _at_points("IQ2_XS", bits & 511, _signs((bits >> 9).astype(np.uint8), 7), step)


def iq2_s(blocks: Blocks) -> Values:
    """d, 32 bytes of points, 32 of signs, 8 of points' upper bits, 16 scales; as in IQ2_XXS."""
    upper = blocks[:, 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    points = blocks[:, 2:34] | upper.reshape(-1, 32).astype(np.uint16) << 8
    step = float16(blocks[:, :2]) * (np.float32(0.5) + _halves(blocks[:, 74:])) * np.float32(0.25)
    return _at_points("IQ2_S", points, _signs(blocks[:, 34:66], 8), step)


def iq3_xxs(blocks: Blocks) -> Values:
    """d, 64 points of 4 values, 8 words of scale and signs; d * (scale + 1/2) / 2 * ..."""
    scale, signs = _words(blocks[:, 66:])
    step = float16(blocks[:, :2]) * (np.float32(0.5) + scale) * np.float32(0.5)
    return _at_points("IQ3_XXS", blocks[:, 2:66], signs, step)


def iq3_s(blocks: Blocks) -> Values:
    """d, 64 points, 8 bytes of points' upper bits, 32 of signs, 8 scales; d * (1 + 2 scale)..."""
    upper = np.unpackbits(blocks[:, 66:74], axis=-1, bitorder="little").astype(np.uint16)
    step = float16(blocks[:, :2]) * (1 + 2 * _halves(blocks[:, 106:]))
    return _at_points("IQ3_S", blocks[:, 2:66] | upper << 8, _signs(blocks[:, 74:106], 8), step)


_SHIFT = np.float32(0.125)


def iq1_s(blocks: Blocks) -> Values:
    """d, 32 bytes of points, then 8 numbers of 16 bits for 32 values each.

    These have the points' upper bits (4 times 3), a scale (3 bits) and the sign of the shift.
    d * (2 scale + 1) * (point + shift).
    """
    bits = blocks[:, 34:].copy().view("<u2")
    upper = (bits[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(-1, 32)
    points = grid("IQ1_S")[blocks[:, 2:34] | upper << 8].reshape(-1, 8, 32)
    step = float16(blocks[:, :2]) * (2 * (bits >> 12 & 7) + 1).astype(np.float32)
    shift = np.where(bits & 0x8000, -_SHIFT, _SHIFT)
    values: Values = step[..., None] * (points + shift[..., None])
    return values.reshape(-1, 256)


def iq1_m(blocks: Blocks) -> Values:
    """32 bytes of points, 16 bytes of upper bits, 4 numbers of 16 bits with scales.

    A nibble of upper bits has 3 bits of a point and the sign of its shift. A number has four scales
    of 3 bits, for 16 values each, and four bits of d. As in IQ1_S.
    """
    packed = blocks[:, 48:].copy().view("<u2")
    d_bits = (packed >> 12 << np.arange(0, 16, 4, dtype=np.uint16)).sum(axis=-1, dtype=np.uint16)
    d = d_bits.view(np.float16).astype(np.float32)[:, None]
    scales = (packed[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(-1, 16)
    upper = np.stack([blocks[:, 32:48] & 15, blocks[:, 32:48] >> 4], axis=-1).reshape(-1, 32)
    points = grid("IQ1_S")[blocks[:, :32] | (upper & 7).astype(np.uint16) << 8]
    shift = np.where(upper & 8, -_SHIFT, _SHIFT)
    step = np.repeat(d * (2 * scales + 1).astype(np.float32), 2, axis=-1)
    values: Values = step[..., None] * (points + shift[..., None])
    return values.reshape(-1, 256)
