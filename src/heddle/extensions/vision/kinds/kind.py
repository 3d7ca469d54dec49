"""The eyes of one checkpoint: what they read of a picture, and what becomes of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.prepared import Kept
    from heddle.extensions.vision.scenes import Cutter
    from heddle.extensions.vision.tower import Tower
    from heddle.pictures import Scene

    Floats = NDArray[np.float32]
    Arrange = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Kind:
    """The eyes of one checkpoint.

    Attributes:
        tower: the encoder.
        cutter: makes what it reads.
        keeps_first: whether a tile has a row of the token that `Cutter.first` is.
        row_break: the row that ends a line of rows of the tiles; None: nothing does.
    """

    tower: Tower
    cutter: Cutter
    keeps_first: bool = False
    row_break: Floats | None = None

    def patches(self, tile: Floats) -> int:
        """What the tower reads of a tile: patches, and perhaps a token beside them."""
        down, across = _grid(tile, self.cutter.patch)
        return down * across + (self.cutter.first is not None)

    def grid(self, tiles: Sequence[Floats]) -> tuple[int, int]:
        """Rows of the text model from top to bottom, and from left to right, of the first tile."""
        return _grid(tiles[0], self.cutter.patch * self.cutter.merge)

    def count(self, tiles: Sequence[Floats], kept: Kept | None = None) -> int:
        """The number of rows of a picture with these tiles; `kept` as for :meth:`arrange`."""
        seen = tiles if kept is None else tiles[:1]
        rows = sum(self.patches(tile) // self.tower.fold for tile in seen)
        if self._has_first_row and not self.keeps_first:
            rows -= len(seen)
        return rows if kept is None else rows + kept.height * (kept.width + 1)

    @property
    def _has_first_row(self) -> bool:
        """Whether the tower makes a row of the token beside the patches."""
        return self.cutter.first is not None and self.tower.fold == 1

    def scenes(self, tiles: Sequence[Floats]) -> list[Scene]:
        """What the tower reads of a picture's tiles."""
        return [self.cutter.scene(tile) for tile in tiles]

    def arrange(self, tiles: Sequence[Floats], kept: Kept | None = None) -> Arrange | None:
        """What makes the picture's rows from those of the tower; None: they are the same.

        `kept` says which rows of the tiles after the first stay, where lines have ends.
        """
        end = self.row_break
        if end is not None:
            assert kept is not None, "the processor knows it"
            return lambda rows: _in_lines(self._by_tile(rows, len(tiles)), end, kept)
        if self._has_first_row:
            return lambda rows: np.concatenate(list(self._by_tile(rows, len(tiles))))
        return self.cutter.arranged(tiles[0]) if len(tiles) == 1 else None

    def _by_tile(self, rows: Floats, count: int) -> Floats:
        """The rows of each of `count` tiles: (tiles, rows, columns)."""
        by_tile = rows.reshape(count, -1, rows.shape[1])
        if not self._has_first_row:
            return by_tile
        return np.roll(by_tile, 1, axis=1) if self.keeps_first else by_tile[:, :-1]


def _grid(tile: Floats, side: int) -> tuple[int, int]:
    """Squares of so many pixels a side from top to bottom, and from left to right."""
    height, width, _ = tile.shape
    return height // side, width // side


def _in_lines(tiles: Floats, end: Floats, kept: Kept) -> Floats:
    """The rows of the first tile, then those of the field of the others, with ends of lines."""
    side, width = isqrt(tiles.shape[1]), tiles.shape[2]
    field = tiles[1:].reshape(kept.down, kept.across, side, side, width)
    field = field.transpose(0, 2, 1, 3, 4).reshape(kept.down * side, -1, width)
    field = field[kept.top : kept.top + kept.height, kept.left : kept.left + kept.width]
    ends = np.broadcast_to(end, (kept.height, 1, width))
    lines = np.concatenate([field, ends], axis=1, dtype=np.float32)
    return np.concatenate([tiles[0], lines.reshape(-1, width)])
