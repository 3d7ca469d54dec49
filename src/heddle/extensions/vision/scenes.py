"""Cuts tiles of pictures into patches, in the order in which a tower reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heddle.pictures import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


class PositionVectors(Protocol):
    """The learned vectors of positions."""

    def __call__(self, rows: int, columns: int) -> Floats:
        """Those of a grid of patches, row by row: (rows * columns, width)."""
        ...


@dataclass(frozen=True, slots=True)
class Cutter:
    """Makes scenes from tiles.

    Attributes:
        patch: pixels of a side of a patch.
        merge: patches of a side of the square that becomes one row of the text model.
        positions: the vectors of positions; None: there are none.
        first: the vector (width,) of the token that comes last, with place 0; None: there is none.
        window: squares of a side of a window; 0: there are no windows.
        begin: place of the first patch on both axes.
    """

    patch: int
    merge: int
    positions: PositionVectors | None = None
    first: Floats | None = None
    window: int = 0
    begin: int = 0

    def scene(self, tile: Floats) -> Scene:
        """The scene of a tile (height, width, 3), whose sides are multiples of a square's."""
        height, width, _ = tile.shape
        rows, columns = height // self.patch, width // self.patch
        order = self._order(rows, columns)
        patches = tile.reshape(rows, self.patch, columns, self.patch, 3).transpose(0, 2, 4, 1, 3)
        values = patches.reshape(rows * columns, -1)[order]
        if self.positions is not None:
            values = np.concatenate([values, self.positions(rows, columns)[order]], axis=1)
        places = np.stack([order // columns, order % columns], axis=1) + self.begin
        whole = np.broadcast_to([0, len(order)], (len(order), 2))
        runs = np.stack([whole, self._windows(order, rows, columns) if self.window else whole], 1)
        if self.first is not None:
            values, places, runs = self._with_first(values, places, runs)
        return Scene(
            np.ascontiguousarray(values, np.float32),
            places.astype(np.int32),
            np.ascontiguousarray(runs, np.int32),
        )

    def _with_first(
        self, values: Floats, places: NDArray[np.int64], runs: NDArray[np.int64]
    ) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """The patches and the token before them, which has no pixels."""
        assert self.first is not None, "the caller has looked"
        row = np.zeros((1, values.shape[1]), np.float32)
        row[0, -len(self.first) :] = self.first
        return (
            np.concatenate([values, row]),
            np.concatenate([places, np.zeros((1, 2), np.int64)]),
            np.broadcast_to([0, len(values) + 1], (len(values) + 1, 2, 2)),
        )

    def _order(self, rows: int, columns: int) -> NDArray[np.int64]:
        """Numbers of the patches in the order of the tower: windows, squares, patches of one."""
        merge = self.merge
        numbers = np.arange(rows * columns).reshape(rows // merge, merge, columns // merge, merge)
        squares = numbers.transpose(0, 2, 1, 3).reshape(rows // merge, columns // merge, -1)
        if not self.window:
            return squares.reshape(-1)
        return np.concatenate(
            [
                squares[top : top + self.window, left : left + self.window].reshape(-1)
                for top in range(0, len(squares), self.window)
                for left in range(0, squares.shape[1], self.window)
            ]
        )

    def _windows(self, order: NDArray[np.int64], rows: int, columns: int) -> NDArray[np.int64]:
        """The run of each patch's window: (patches, 2)."""
        side = self.window * self.merge
        number = order // columns // side * (-(-columns // side)) + order % columns // side
        begins = np.searchsorted(number, number, side="left")
        return np.stack([begins, np.searchsorted(number, number, side="right")], axis=1)

    def arranged(self, tile: Floats) -> Callable[[Floats], Floats] | None:
        """Puts the rows of a tile in the order of the picture; None: they are in it."""
        if not self.window:
            return None
        height, width, _ = tile.shape
        order = self._order(height // self.patch, width // self.patch)
        squares = order[:: self.merge**2]
        back = np.argsort(squares)
        return lambda rows: rows[back]
