"""How a KV cache keeps keys and values, and the int8 codes that attention multiplies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Float32 = NDArray[np.float32]


def as_kept(x: Float32, kv_type: str) -> Float32:
    """Keys or values x (tokens, kv_heads * head_dim) as a KV cache returns them.

    `f32` keeps values unchanged, `f16` rounds each value. `q8_0` is the format of GGUF: every 32
    elements of a head share a scale, rounded to float16; see :func:`codes_of`. The number of
    elements of a head must be a multiple of 32. `q4` is for heads that are :func:`rotated`: 32
    elements share the scale max|x| / 16, rounded to float16, and become its nearest odd multiple
    from -15 to 15. `fp8` rounds each value to E4M3, to nearest, ties
    to even. Values beyond 448, the largest, become 448; what is not finite becomes NaN.
    """
    match kv_type:
        case "f32":
            return x
        case "f16":
            return x.astype(np.float16).astype(np.float32)
        case "q8_0":
            codes, scales = codes_of(x)
            kept: Float32 = codes * scales.astype(np.float16).astype(np.float32)
            return kept.reshape(x.shape)
        case "q4":
            blocks = x.reshape(-1, 32)
            peak = np.abs(blocks).max(axis=-1, keepdims=True)
            with np.errstate(divide="ignore", over="ignore"):
                steps = np.float32(8) / peak
            steps = np.where(np.isfinite(steps), steps, np.float32(0))
            levels = np.rint((blocks * steps + np.float32(7.5)).clip(0, 15))
            scales = (peak / np.float32(16)).astype(np.float16).astype(np.float32)
            level: Float32 = (2 * levels - 15) * scales
            return level.reshape(x.shape)
        case "fp8":
            finite = np.isfinite(x)
            clipped = np.where(finite, x, np.float32(0)).clip(-448, 448)
            # frexp's exponent is 1 above that of 1.m; below 2**-6 numbers lie 2**-9 apart.
            step = np.ldexp(np.float32(1), np.maximum(np.frexp(clipped)[1] - 1, -6) - 3)
            rounded: Float32 = np.rint(clipped / step) * step
            return np.where(finite, rounded, np.float32(np.nan))
    raise ValueError(f"no KV cache is of type {kv_type}")


def rotated(x: Array, head_dim: int) -> Array:
    """x (tokens, heads * head_dim) with each head rotated, as `q4` keeps it.

    Each run of a head, as long as the largest power of two that divides `head_dim`, is multiplied
    by the orthonormal Hadamard matrix in its natural order. A second rotation undoes the first.
    """
    size = head_dim & -head_dim
    y: Array = x.reshape(-1, size) * (np.float32(1) / np.sqrt(np.float32(size)))
    distance = 1
    while distance < size:
        first, second = y.reshape(len(y), -1, 2, distance).swapaxes(0, 2).swapaxes(1, 2)
        y = np.stack([first + second, first - second], axis=2).reshape(len(y), size)
        distance *= 2
    return y.reshape(x.shape)


def codes_of(x: Array, largest: int = 127) -> tuple[Array, Array]:
    """Int8 codes (..., n / 32, 32) of x (..., n), and the scale (..., n / 32, 1) of each 32.

    The rule of ggml's `quantize_row_q8_0`: a scale is d = max|x| / 127. Codes are x / d to nearest,
    ties to even. Where 127 / max|x| overflows, they are zero. `largest` replaces 127.
    """
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        steps = np.float32(largest) / peak
    steps = np.where(np.isfinite(steps), steps, np.float32(0))
    return np.rint(blocks * steps), peak / np.float32(largest)


def as_codes(x: Array) -> Array:
    """x (..., n) as products of codes read it: each element is its code times the scale."""
    codes, scales = codes_of(x)
    coded: Array = codes * scales
    return coded.reshape(x.shape)


LARGEST_CODE = {"q8_0": 127, "q4": 15}
"""The code of the largest element of 32, by the KV types whose codes attention multiplies."""


def sums_of_codes(weights: Array, values: Array, kv_type: str = "q8_0") -> Array:
    """Sums (queries, head_dim) of kept values (positions, head_dim), from position 0 on.

    Each weight (queries, positions) is multiplied by the scales of its value. Then the weights of a
    page's 32 positions become codes. Each 32 elements of values have the largest code of their
    type, so `codes_of` returns the codes and scales that the cache keeps.
    """
    codes, scales = codes_of(values, LARGEST_CODE[kv_type])
    scaled = weights * scales.transpose(1, 2, 0)  # for each 32 elements (queries, positions)
    positions = len(values)
    pages = np.pad(scaled, ((0, 0), (0, 0), (0, -positions % PAGE_TOKENS)))
    sums = as_codes(pages)[..., :positions] @ codes.swapaxes(0, 1)
    return np.concatenate(list(sums), axis=-1)
