"""Random blocks of any tensor type.

The reference of a type tells which bytes are a sound block, so no test says where a type keeps its
scales.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from heddle.weights.tensor_types import TensorType, dequantize

QUANTISED = [kind for kind in TensorType.supported() if not kind.is_float]
FLOATS = [kind for kind in TensorType.supported() if kind.is_float]

E4M3 = np.array(
    [
        (-1 if code & 128 else 1)
        * (
            (1 + (code & 7) / 8) * 2.0 ** ((code >> 3 & 15) - 7)
            if code >> 3 & 15
            else (code & 7) / 8 * 2.0**-6
        )
        for code in range(256)
    ],
    np.float32,
)
"""Values of FP8 E4M3 by code, but for the two NaN."""

_LEAST, _MOST = 0.001, 1.0  # the largest value of a trained model's block lies between
_POOL = 256


def as_values(blocks: np.ndarray, kind: TensorType) -> np.ndarray:
    """The values of blocks (n, block_bytes): (n, block_elements)."""
    return dequantize(blocks.reshape(-1), kind, (len(blocks), kind.block_elements))


def _peaks(blocks: np.ndarray, kind: TensorType) -> np.ndarray:
    return np.abs(as_values(blocks, kind)).max(axis=-1)


@cache
def _pool(kind: TensorType) -> np.ndarray:
    """Blocks of random bytes, drawn until enough of them have values of a trained model's size."""
    rng = np.random.default_rng(int(kind))
    found = np.empty((0, kind.block_bytes), np.uint8)
    while len(found) < _POOL:
        drawn = rng.integers(0, 256, (2048, kind.block_bytes), np.uint8)
        peaks = _peaks(drawn, kind)  # comparisons with NaN are false
        found = np.concatenate([found, drawn[(peaks >= _LEAST) & (peaks <= _MOST)]])
    return found


def random_matrix(
    rng: np.random.Generator, kind: TensorType, rows: int, columns: int
) -> np.ndarray:
    """File bytes of a matrix with weights of a trained model's size."""
    pool = _pool(kind)
    return pool[rng.integers(0, len(pool), rows * columns // kind.block_elements)].ravel()


def extreme_block(kind: TensorType, byte: int) -> np.ndarray:
    """A block whose bytes are all `byte`, but those that the size of its values depends on."""
    block = _pool(kind)[:1].copy()
    for at, before in enumerate(block[0].tolist()):
        block[0, at] = byte
        if not _LEAST <= _peaks(block, kind)[0] <= 16 * _MOST:
            block[0, at] = before
    return block[0]
