"""What the readers of both formats find in an adapter's files, before anything is read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

MOST_RANK = 1024
"""The largest rank of a change. Adapters that are published have ranks from 4 to 256."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two matrices of a change, unread.

    Attributes:
        label: the file's own name of its tensor.
        shape: row-major.
        read: returns its values, a new float32 array of `shape`.
    """

    label: str
    shape: tuple[int, ...]
    read: Callable[[], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of a change of one stored matrix.

    Attributes:
        matrix: name of the changed matrix in the adapter's format, with `.weight`.
        a: (rank, columns).
        b: (rows, rank).
    """

    matrix: str
    a: Side
    b: Side

    @property
    def rank(self) -> int:
        """Rows of `a`."""
        return self.a.shape[0]


def pairs_of(sides: Iterable[tuple[str, str, Side]], path: Path) -> list[Pair]:
    """The pairs of some sides, each with the name of its matrix, and "a" or "b".

    Raises:
        ModelFileError: a side is alone or occurs twice, there is no side, or the shapes of a pair
            contradict each other.
    """
    found: dict[str, dict[str, Side]] = {}
    for matrix, which, side in sides:
        both = found.setdefault(matrix, {})
        if which in both:
            raise ModelFileError(
                f"{path}: {both[which].label} and {side.label} change the same matrix; an adapter"
                " changes each matrix once. Export the adapter again",
                field=side.label,
            )
        both[which] = side
    if not found:
        raise ModelFileError(
            f"{path} changes nothing: it has no tensors of low rank. Export the adapter again",
            field="tensors",
        )
    return [_pair(matrix, both, path) for matrix, both in found.items()]


def _pair(matrix: str, both: dict[str, Side], path: Path) -> Pair:
    if len(both) < 2:
        ((which, side),) = both.items()
        raise ModelFileError(
            f"{path}: tensor {side.label} has no lora_{'b' if which == 'a' else 'a'} beside it; the"
            " file is damaged, fetch it again",
            field=side.label,
        )
    a, b = both["a"], both["b"]
    for side in (a, b):
        if len(side.shape) != 2:
            raise ModelFileError(
                f"{path}: tensor {side.label} has shape {side.shape}; Heddle reads changes of"
                " matrices, whose tensors have 2 dimensions",
                field=side.label,
            )
    if not 1 <= a.shape[0] <= MOST_RANK:
        raise ModelFileError(
            f"{path}: tensor {a.label} has rank {a.shape[0]}; ranks from 1 to {MOST_RANK:,} are"
            " supported",
            field=a.label,
        )
    if b.shape[1] != a.shape[0]:
        raise ModelFileError(
            f"{path}: tensor {a.label} has shape {a.shape} and {b.label} has shape {b.shape}; the"
            " columns of the second must be as many as the rows of the first",
            field=b.label,
        )
    return Pair(matrix, a, b)
