"""Merges and prunes engram tables of version 2."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from heddle.errors import EngramError
from heddle.extensions.engrams.build import Form, Made, Progress, workspace, write_table
from heddle.extensions.engrams.format import Vocabulary
from heddle.extensions.engrams.grouping import records_of
from heddle.extensions.engrams.reader import Engram
from heddle.extensions.engrams.rows import Packing, merged, summed
from heddle.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from heddle.extensions.engrams.records import Records
    from heddle.extensions.engrams.rows import Rows


def merge(
    output: Path, inputs: Sequence[Path], weights: Sequence[float], form: Form, progress: Progress
) -> Made:
    """Add the frequencies of several tables, and write the sums.

    Args:
        output: the table to write.
        inputs: tables of one vocabulary.
        weights: for each table, the factor of its frequencies. Products are rounded to the nearest
            integer, but to at least 1.
        form: what stays. `longest` and `shortest` are limits: the result has no lengths that no
            table has.
        progress: takes reports.

    Raises:
        EngramError: vocabularies differ, a weight is not above 0, a table has version 1, a file
            cannot be read or written, or no n-gram is left.
        EngramFileError: a table is damaged.
    """
    _check_weights(inputs, weights)
    with ExitStack() as stack:
        tables = [stack.enter_context(Engram.open(path)) for path in inputs]
        vocabulary = _common_vocabulary(tables)
        form = replace(
            form,
            longest=min(form.longest, max(table.header.longest for table in tables)),
            shortest=max(form.shortest, min(table.header.shortest for table in tables)),
        )
        folder = stack.enter_context(workspace(output))
        records = chain.from_iterable(
            _merged_order(order, tables, weights, vocabulary, form) for order in form.orders
        )
        return write_table(output, folder, records, vocabulary, form, progress)


def _check_weights(inputs: Sequence[Path], weights: Sequence[float]) -> None:
    if len(weights) != len(inputs):
        raise EngramError(
            f"found {counted(len(weights), 'weight')} for {counted(len(inputs), 'table')}. Give"
            " --weight once for each table, in their order, or not at all."
        )
    for weight in weights:
        if not 0 < weight < float("inf"):
            raise EngramError(f"a weight of {weight:g} is not above 0. Leave the table out.")


def _common_vocabulary(tables: Sequence[Engram]) -> Vocabulary:
    for table in tables:
        if table.header.version == 1:
            raise EngramError(
                f"{table.path} has version 1, which stores neither n-grams nor a vocabulary. Build"
                " the table again from its texts."
            )
    first, *others = tables
    for other in others:
        if other.header.fingerprint != first.header.fingerprint:
            raise EngramError(
                f"{first.path} and {other.path} have different vocabularies. Build both with one"
                " --model."
            )
    return Vocabulary(first.header.vocabulary, first.header.fingerprint)


def _merged_order(
    order: int,
    tables: Sequence[Engram],
    weights: Sequence[float],
    vocabulary: Vocabulary,
    form: Form,
) -> Iterator[Records]:
    packing = Packing(order + 1, vocabulary.size)
    sources = [
        _rows(table, order, packing, weight) for table, weight in zip(tables, weights, strict=True)
    ]
    return records_of(merged(sources), packing, form.keep)


def _rows(table: Engram, order: int, packing: Packing, weight: float) -> Iterator[Rows]:
    """The rows of the n-grams of one length, in order."""
    for records in table.records():
        if records.order == order:
            groups = np.repeat(np.arange(len(records)), records.sizes)
            rows = packing.pack([*records.ngrams[groups].T, records.tokens])
            counts = np.maximum(1, np.rint(records.frequencies * weight))
            rows[:, -1] = counts.astype(np.uint64)
            yield summed(rows)
        elif records.order > order:
            return
