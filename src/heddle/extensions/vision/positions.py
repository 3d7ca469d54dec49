"""Learned vectors of positions, fitted to the grid of patches of a tile.

The files have the vectors of a square grid. Along each axis, a vector is a sum of some of its lines
with weights: which ones is the difference between the kinds of eyes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from heddle.extensions.vision.scenes import PositionVectors

    Floats = NDArray[np.float32]
    Floats64 = NDArray[np.float64]
    Lines = tuple[NDArray[np.int64], Floats64]
    Along = Callable[[int, int], Lines]

_CUBIC = -0.75
"""The parameter of cubic convolution (Keys 1981), as torch has it."""


def fitted(table: Floats, side: int, along: Along) -> PositionVectors:
    """The vectors of `table`, a square of `side` by `side` of them, row by row, for any grid.

    along(count, side) returns for each of `count` patches of an axis the stored lines, and their
    weights: (count, lines) each.
    """
    square = table.reshape(side, side, -1)

    def of(rows: int, columns: int) -> Floats:
        lines, weights = _float32(along(rows, side))
        down = sum(weights[:, i, None, None] * square[one] for i, one in enumerate(lines.T))
        assert isinstance(down, np.ndarray), "there is at least one line"
        lines, weights = _float32(along(columns, side))
        both = sum(weights[:, i, None] * down[:, one] for i, one in enumerate(lines.T))
        assert isinstance(both, np.ndarray), "there is at least one line"
        return both.reshape(rows * columns, -1)

    return of


def sums(table: Floats) -> PositionVectors:
    """The sum of a column's and of a row's vector; the first half of `table` has the columns'."""
    columns_of, rows_of = np.split(table, 2)

    def of(rows: int, columns: int) -> Floats:
        if max(rows, columns) > len(rows_of):
            raise ModelFileError(
                f"a tile may have {max(rows, columns)} patches along a side, but the eyes have"
                f" positions of {len(rows_of)}; the sizes of the processor contradict those of the"
                " eyes",
                field="position_embedding_size",
            )
        both = rows_of[:rows, None] + columns_of[None, :columns]
        return both.reshape(rows * columns, -1)

    return of


def _float32(lines: Lines) -> tuple[NDArray[np.int64], Floats]:
    return lines[0], lines[1].astype(np.float32)


def as_stored(count: int, side: int) -> Lines:
    """All lines: tiles have one size.

    Raises:
        ModelFileError: the tile has another size.
    """
    if count != side:
        raise ModelFileError(
            f"a tile has {count} patches along a side, but the eyes have positions of {side};"
            " the image size of the processor contradicts that of the eyes",
            field="image_size",
        )
    return np.arange(side)[:, None], np.ones((side, 1))


def bucketed(count: int, side: int) -> Lines:
    """The line in whose bucket a patch falls by its place in the tile.

    Dehghani et al. 2023 (arXiv:2307.06304, section 2.1), as in Idefics 2 and 3.
    """
    return (np.arange(count) * side // count)[:, None], np.ones((count, 1))


def to_corners(count: int, side: int) -> Lines:
    """Linear: the first and the last patch are on the first and the last line (Qwen3-VL)."""
    return _around(np.linspace(0, side - 1, count), side, 2, lambda far: 1 - far)


def smoothed(count: int, side: int) -> Lines:
    """Linear; where lines are denser than patches, over all that a patch has (SigLIP 2)."""
    reach = max(side / count, 1.0)
    lines = 2 * int(np.ceil(reach)) + 1
    return _around(_middles(count, side), side, lines, lambda far: 1 - far / reach, clips=False)


def cubic(count: int, side: int) -> Lines:
    """Cubic convolution (Keys 1981), beyond whose borders the outermost lines go on (GLM-4V)."""

    def kernel(far: Floats64) -> Floats64:
        near: Floats64 = ((_CUBIC + 2) * far - (_CUBIC + 3)) * far**2 + 1
        return np.where(far <= 1, near, _CUBIC * (((far - 5) * far + 8) * far - 4))

    return _around(_middles(count, side), side, 4, kernel)


def _middles(count: int, side: int) -> Floats64:
    """The places of the middles of `count` patches among `side` lines."""
    places: Floats64 = (np.arange(count, dtype=np.float64) + 0.5) * (side / count) - 0.5
    return places


def _around(
    places: Floats64,
    side: int,
    lines: int,
    kernel: Callable[[Floats64], Floats64],
    *,
    clips: bool = True,
) -> Lines:
    """So many lines around each place, weighed by kernel(distance), which is at least 0 with them.

    Where there are no lines, the outermost one stands for them if `clips`; if not, the others weigh
    more.
    """
    first = np.floor(places).astype(np.int64) - (lines - 1) // 2
    found = first[:, None] + np.arange(lines)
    weights = kernel(np.abs(found - places[:, None]))
    if not clips:
        weights = np.where((found >= 0) & (found < side), np.maximum(weights, 0), 0)
        weights /= weights.sum(1, keepdims=True)
    return found.clip(0, side - 1), weights
