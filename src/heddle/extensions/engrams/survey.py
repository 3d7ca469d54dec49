"""Figures of engram tables, for people."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.extensions.engrams.reader import Engram
    from heddle.extensions.engrams.records import Entry, Records


@dataclass(slots=True)
class OrderFigures:
    """Figures of the n-grams of one length.

    Attributes:
        order: their length.
        entries: how many there are.
        followers: how many pairs of an n-gram and a token there are.
        total: the sum of all frequencies.
        top: the n-grams with the largest sums of frequencies and these sums, falling.
    """

    order: int
    entries: int = 0
    followers: int = 0
    total: int = 0
    top: list[tuple[int, Entry]] = field(default_factory=list)


def survey(table: Engram, most: int) -> list[OrderFigures]:
    """Figures for each length of n-grams. Reads and checks all records and slots.

    `most`: how many of the most frequent n-grams of a length to keep.

    Raises:
        EngramFileError: the table is damaged.
    """
    header = table.header
    orders = range(header.shortest, header.longest + 1)
    figures = {order: OrderFigures(order) for order in orders}
    if header.version == 1:
        _add_entries(figures[header.longest], table.entries(), most)
    else:
        table.check_slots()
        for records in table.records():
            _add_records(figures[records.order], records, most)
    return list(figures.values())


def _add_entries(figures: OrderFigures, entries: Iterator[Entry], most: int) -> None:
    for entry in entries:
        total = sum(frequency for _, frequency in entry.followers)
        figures.entries += 1
        figures.followers += len(entry.followers)
        figures.total += total
        figures.top = _largest(figures.top, [(total, entry)], most)


def _add_records(figures: OrderFigures, records: Records, most: int) -> None:
    totals = records.totals()
    figures.entries += len(records)
    figures.followers += len(records.tokens)
    figures.total += int(totals.sum())
    # A stable order, so that equal sums come by n-gram, as the records do.
    places = (~totals).argsort(kind="stable")[:most].tolist()
    found = list(zip(totals[places].tolist(), records.entries(places), strict=True))
    figures.top = _largest(figures.top, found, most)


def _largest(
    known: Sequence[tuple[int, Entry]], more: Sequence[tuple[int, Entry]], most: int
) -> list[tuple[int, Entry]]:
    return heapq.nlargest(most, [*known, *more], key=lambda pair: pair[0])
