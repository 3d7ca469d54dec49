"""The bias of engram tables on the logits of a sequence: what a sampler gets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from heddle import _native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class EngramFile:
    """The file of an open engram table, so that another process can open the same one.

    Attributes:
        path: its absolute path.
        stamp: identifies the file that is open.
        vocabulary: number of token ids; 0: the file says it.
    """

    path: Path
    stamp: tuple[int, ...]
    vocabulary: int

    @staticmethod
    def stamp_of(descriptor: int) -> tuple[int, ...]:
        """The stamp of an open file."""
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class EngramTable(Protocol):
    """An engram table. Requests and threads share it."""

    def predict(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        """Predict what follows `tokens`: (token, probability), falling, at most 64.

        Empty if the table has none of the n-grams that end `tokens`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class EngramBias:
    """The bias of engram tables on the logits of a sequence. It depends on the tokens alone.

    The tables that predict something are merged: p is the mean of their probabilities, by weight.
    The logit of each predicted token gets alpha * (ln(p + 1e-10) - ln 1e-10), or, if `literal`,
    alpha * ln(p + 1e-10).

    Attributes:
        tables: the tables and their weights, which are above 0.
        alpha: strength of the bias.
        literal: the form of the bias.
        opening, closing: marks of reasoning. There is no bias after an opening mark until the
            closing one. Empty: the bias holds everywhere.
    """

    tables: tuple[tuple[EngramTable, float], ...]
    alpha: float
    literal: bool = False
    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()

    def native_tables(self) -> list[tuple[_native.Engram, float]]:
        """The tables as the native sampler has them, and their weights.

        Raises:
            TypeError: a table is not open in this process.
        """
        for table, _ in self.tables:
            if not isinstance(table, _native.Engram):
                raise TypeError(repr(table))
        return [
            (table, weight) for table, weight in self.tables if isinstance(table, _native.Engram)
        ]

    def apply_to(self, native: _native.SamplerParams) -> None:
        """See :class:`heddle.token_rules.SamplerRule`."""
        tables = self.native_tables()
        native.set_engram(tables, self.alpha, self.literal, self.opening, self.closing)
