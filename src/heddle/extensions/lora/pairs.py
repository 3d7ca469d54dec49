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
    """The two matrices of a change of one stored matrix, or those of a stack of experts.

    Attributes:
        matrix: name of the changed matrix in the adapter's format, with `.weight`.
        a: (rank, columns), or (experts, rank, columns).
        b: (rows, rank), or (experts, rows, rank).
        magnitude: (rows,), the lengths of the changed matrix's rows (DoRA); None: any.
        is_lookup: whether the matrix is a table, whose rows gain the columns of b @ a.
    """

    matrix: str
    a: Side
    b: Side
    magnitude: Side | None = None
    is_lookup: bool = False

    @property
    def rank(self) -> int:
        """Rows of `a`."""
        return self.a.shape[-2]

    @property
    def experts(self) -> int | None:
        """The experts of a stack; None: one matrix."""
        return self.a.shape[0] if len(self.a.shape) == 3 else None


def pairs_of(sides: Iterable[tuple[str, str, Side]], path: Path) -> list[Pair]:
    """The pairs of some sides, each with the name of its matrix, and one of a few words.

    They are "a", "b", and "magnitude"; or "table_a" and "table_b" of a table.

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
    is_lookup = any(which.startswith("table_") for which in both)
    both = {which.removeprefix("table_"): side for which, side in both.items()}
    if not {"a", "b"} <= both.keys():
        which, side = next(iter(both.items()))
        raise ModelFileError(
            f"{path}: tensor {side.label} has no lora_{'b' if which == 'a' else 'a'} beside it; the"
            " file is damaged, fetch it again",
            field=side.label,
        )
    a, b = both["a"], both["b"]
    for side in (a, b):
        if len(side.shape) not in (2, 3):
            raise ModelFileError(
                f"{path}: tensor {side.label} has shape {side.shape}; Heddle reads changes of"
                " matrices, whose tensors have 2 dimensions, or 3 with experts",
                field=side.label,
            )
    if not 1 <= a.shape[-2] <= MOST_RANK:
        raise ModelFileError(
            f"{path}: tensor {a.label} has rank {a.shape[-2]}; ranks from 1 to {MOST_RANK:,} are"
            " supported",
            field=a.label,
        )
    if b.shape[-1] != a.shape[-2] or b.shape[:-2] != a.shape[:-2]:
        raise ModelFileError(
            f"{path}: tensor {a.label} has shape {a.shape} and {b.label} has shape {b.shape}; the"
            " columns of the second must be as many as the rows of the first",
            field=b.label,
        )
    magnitude = both.get("magnitude")
    if magnitude is not None and magnitude.shape != (b.shape[0],):
        raise ModelFileError(
            f"{path}: tensor {magnitude.label} has shape {magnitude.shape}; the {b.shape[-2]} rows"
            f" of {b.label} need a number each",
            field=magnitude.label,
        )
    return Pair(matrix, a, b, magnitude, is_lookup)
