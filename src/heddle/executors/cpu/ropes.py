"""The rope tables of a program, which grow with the positions that steps reach.

The tables of a context of 131,072 tokens take 67 MB and most of a second; few texts are as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from heddle._native import Program
    from heddle.models.ops import RopeSpec

_PART = 1024
"""Positions that are added together: they take about a millisecond."""


class RopeTables:
    """The tables of `program`, for positions below `most`.

    Attributes:
        axes: the number of axes whose places turn rotations; 0: positions turn all of them.
    """

    def __init__(self, program: Program, most: int) -> None:
        self.most = most
        self._program = program
        self.axes = 0
        self._tables: dict[RopeSpec, int] = {}
        self._known = 0

    def of(self, spec: RopeSpec) -> int:
        """The number of the table with the rotations of `spec`. Call it before the first step."""
        self.axes = max(self.axes, *(axis + 1 for axis in spec.axes), 0)
        if spec not in self._tables:
            table = self._program.rope_table(spec.dim, spec.interleaved, self.most)
            self._tables[spec] = table
        return self._tables[spec]

    def reach(self, positions: int) -> None:
        """Make the positions below `positions` known. Call it while no step runs."""
        while self._known < min(positions, self.most):
            last = min(self._known + _PART, self.most)
            for spec, table in self._tables.items():
                self._program.extend_rope(table, *rotations(spec, self._known, last))
            self._known = last


def rotations(
    spec: RopeSpec, first: int, last: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines (last - first, dim / 2), computed in float64 and rounded once."""
    pairs = np.arange(spec.dim // 2, dtype=np.float64)
    frequency = spec.base ** (-2.0 * pairs / spec.dim)
    if spec.factors:
        frequency /= np.asarray(spec.factors, dtype=np.float64)
    places = np.arange(first, last)
    angle = (places + spec.offset)[:, None] * frequency
    scale = spec.scales(places)[:, None]
    return (np.cos(angle) * scale).astype(np.float32), (np.sin(angle) * scale).astype(np.float32)
