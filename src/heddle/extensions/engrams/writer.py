"""Writes engram tables from records that come in order, within a memory budget.

The number of entries fixes the sizes of filter and table, and is known only after the last record.
So the records and an index, a slot for each, go to temporary files. The filter and the table are
then made from the index part by part.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from heddle.errors import EngramError
from heddle.extensions.engrams.format import (
    LARGEST_FREQUENCY,
    SLOT_BYTES,
    WORD,
    Header,
    filter_places,
    hashes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from heddle.extensions.engrams.format import Vocabulary
    from heddle.extensions.engrams.records import Records

_COPIES = 8
"""Copies of a part of the filter or the table that making it holds at once."""


class TableWriter:
    """Collects records in temporary files and makes a table of them."""

    def __init__(
        self,
        folder: Path,
        version: int,
        orders: tuple[int, int],
        vocabulary: Vocabulary,
        memory: int,
    ) -> None:
        """Collect in `folder`, with `memory` bytes. `orders`: the shortest and the longest."""
        self._version = version
        self._orders = orders
        self._vocabulary = vocabulary
        self._part = max(1, memory // (_COPIES * SLOT_BYTES))
        self._data_path, self._index_path = folder / "data", folder / "index"
        self._data, self._index = self._data_path.open("wb"), self._index_path.open("wb")
        self._data_bytes = 0
        self.entries: dict[int, int] = dict.fromkeys(range(orders[0], orders[1] + 1), 0)
        """The number of n-grams so far, by their length."""

    def add(self, records: Records) -> None:
        """Take more records. They come ordered by length, then by n-gram.

        Raises:
            EngramError: version 1 has no room for so many.
        """
        one = self._version == 1
        words, starts = records.words_1() if one else records.words()
        slots = np.empty(len(records), self._header().slot)
        slots["hash"] = hashes(records.ngrams)
        slots["offset"] = self._data_bytes + 4 * starts
        if one:
            slots["count"] = np.minimum(records.totals(), LARGEST_FREQUENCY)
        self._data_bytes += 4 * len(words)
        if one and self._data_bytes > 2**32:
            raise EngramError(
                "the records pass 4 GiB, the limit of version 1. Write version 2, raise --min-count"
                " or lower --top."
            )
        self._data.write(words.astype(WORD, copy=False).data)
        self._index.write(slots.data)
        self.entries[records.order] += len(records)

    def finish(self, path: Path) -> None:
        """Write the table to `path`."""
        self._data.close()
        self._index.close()
        header = self._header()
        with path.open("w+b") as file:
            file.write(header.pack())
            if header.filter_bits:
                self._write_filter(file, header)
            self._write_table(file, header)
            with self._data_path.open("rb") as data:
                file.seek(header.data_offset)
                shutil.copyfileobj(data, file, 1 << 18)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the temporary files. Idempotent."""
        self._data.close()
        self._index.close()

    def _header(self) -> Header:
        return Header.sized(
            self._version,
            self._orders,
            entries=sum(self.entries.values()),
            data_bytes=self._data_bytes,
            vocabulary=self._vocabulary,
        )

    def _slots(self, header: Header) -> Iterator[NDArray[Any]]:
        """The index, in blocks."""
        with self._index_path.open("rb") as file:
            while raw := file.read(self._part * SLOT_BYTES):
                yield np.frombuffer(raw, header.slot)

    def _write_filter(self, file: BinaryIO, header: Header) -> None:
        """Write the filter part by part. In memory, a bit takes a byte."""
        step = min(header.filter_bits, -(-self._part * SLOT_BYTES // 8) * 8)
        for low in range(0, header.filter_bits, step):
            flags = np.zeros(min(step, header.filter_bits - low), bool)
            for slots in self._slots(header):
                places = filter_places(slots["hash"], header.filter_bits).ravel()
                inside = places[(places >= low) & (places < low + len(flags))]
                flags[inside - np.uint64(low)] = True
            file.write(np.packbits(flags, bitorder="little").data)

    def _write_table(self, file: BinaryIO, header: Header) -> None:
        """Write the table part by part, each entry at the first free slot from its home on.

        Entries come in the order of their homes. So an entry's slot is its home, or the slot after
        that of the entry before it.
        """
        pending = np.empty(0, header.slot)  # entries whose slots begin with the next part
        step = min(header.table_size, self._part)
        for low in range(0, header.table_size, step):
            part = np.zeros(min(step, header.table_size - low), header.slot)
            homes, entries = self._at_home(header, low, low + len(part))
            counting = np.arange(len(homes))
            behind = np.maximum.accumulate(homes - low - counting)
            slots = counting + np.maximum(behind, len(pending))
            inside = slots < len(part)
            part[: len(pending)] = pending[: len(part)]
            part[slots[inside]] = entries[inside]
            pending = np.concatenate([pending[len(part) :], entries[~inside]])
            file.write(part.data)
        self._wrap_around(file, header, pending)

    def _at_home(
        self, header: Header, low: int, high: int
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The entries whose home slots are in [low, high), by home and hash, and their homes."""
        mask = np.uint64(header.table_size - 1)
        found = []
        for slots in self._slots(header):
            homes = slots["hash"] & mask
            found.append(slots[(homes >= low) & (homes < high)])
        entries = np.concatenate(found)
        entries = entries[np.lexsort((entries["hash"], entries["hash"] & mask))]
        return (entries["hash"] & mask).astype(np.int64), entries

    def _wrap_around(self, file: BinaryIO, header: Header, pending: NDArray[Any]) -> None:
        """Put the entries that pass the table's end into the first free slots."""
        position = header.table_offset
        while len(pending):
            file.seek(position)
            raw = file.read(min(self._part, header.table_size) * SLOT_BYTES)
            part = np.frombuffer(raw, header.slot).copy()
            free = np.flatnonzero(part["hash"] == 0)[: len(pending)]
            part[free] = pending[: len(free)]
            pending = pending[len(free) :]
            file.seek(position)
            file.write(part.data)
            position += part.nbytes
