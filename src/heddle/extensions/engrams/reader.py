"""Reads engram tables, versions 1 and 2.

The reader checks every claim of a file against the bytes that the file has. So a damaged or hostile
file causes an :class:`EngramFileError`, and not a crash or an allocation of the size it claims. The
file is read and never mapped: if another process truncates it, a read returns fewer bytes, but an
access to a map would end the process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from heddle.closing import Closing, open_file
from heddle.errors import EngramError, EngramFileError
from heddle.extensions.engrams.format import SLOT_BYTES, WORD, Header, hashes
from heddle.extensions.engrams.records import Entry, Records, pair_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

_PIECE = 4 << 20
"""Bytes of one read of the table or of the records, a multiple of a slot."""


class Engram(Closing):
    """An open engram table. Use it as a context manager, or call :meth:`close`.

    Attributes:
        path: path at which it was opened.
        size: size of the file when it was opened, in bytes.
        header: its checked header.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over `descriptor`, the open file, and read the header."""
        self.path = path
        self._descriptor: int | None = descriptor
        try:
            self.size = os.fstat(descriptor).st_size
            raw = self._read(0, min(Header.SIZE, self.size), "header")
            self.header = Header.parse(raw, self.size, str(path))
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the file and read its header.

        Raises:
            EngramError: there is no such file, or it cannot be read.
            EngramFileError: the file has another format, or is truncated, corrupt or hostile.
        """
        path = Path(path)
        advice = "; name a table of `heddle engram build`"
        return cls(path, open_file(path, EngramError, advice))

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def look_up(self, tokens: Sequence[int]) -> Entry | None:
        """The entry of the longest n-gram that ends `tokens`: the tokens that followed it.

        None if the table has none of these n-grams.
        """
        for order in range(min(self.header.longest, len(tokens)), self.header.shortest - 1, -1):
            if (entry := self._find(tuple(tokens[len(tokens) - order :]))) is not None:
                return entry
        return None

    def entries(self) -> Iterator[Entry]:
        """All entries: of version 2 in the order of its records, of version 1 in that of its slots.

        Raises:
            EngramFileError: the records are damaged, or their number is not that of the header.
        """
        if self.header.version == 1:
            yield from self._entries_1()
            return
        for records in self.records():
            yield from records.entries()

    def filter_ones(self) -> int:
        """How many bits of the filter are set; 0 in version 1."""
        ones = 0
        for start in range(0, self.header.filter_bits // 8, _PIECE):
            size = min(_PIECE, self.header.filter_bits // 8 - start)
            raw = self._read(self.header.filter_offset + start, size, "filter")
            ones += int(np.unpackbits(np.frombuffer(raw, np.uint8)).sum(dtype=np.int64))
        return ones

    def slots(self) -> Iterator[NDArray[Any]]:
        """The slots that are used, in pieces, with the fields `hash` and `offset`.

        Raises:
            EngramFileError: their number is not that of the header.
        """
        header, count = self.header, 0
        for start in range(0, header.table_size * SLOT_BYTES, _PIECE):
            size = min(_PIECE, header.table_size * SLOT_BYTES - start)
            raw = self._read(header.table_offset + start, size, "table")
            slots = np.frombuffer(raw, header.slot)
            used = slots[slots["hash"] != 0]
            count += len(used)
            yield used
        if count != header.entries:
            self._bad("table", f"has {count:,} entries; the header says {header.entries:,}")

    def check_slots(self) -> None:
        """Check that the slots of a table of version 2 point at its records, each at its own.

        Compares a sum over the slots with the same sum over the records, so that this takes no
        memory for either.

        Raises:
            EngramFileError: they do not, or the records are damaged.
        """
        expected = found = start = 0
        for records in self.records():
            lengths = 4 * (2 + records.order + 2 * records.sizes)
            offsets = start + np.cumsum(lengths) - lengths
            expected += _slot_sum(hashes(records.ngrams), offsets.astype(np.uint64))
            start += int(lengths.sum())
        for slots in self.slots():
            found += _slot_sum(slots["hash"], slots["offset"])
        if (expected - found) % 2**64:
            self._bad("table", "has slots that do not point at the records of their n-grams")

    def records(self) -> Iterator[Records]:
        """The records of a table of version 2, ordered by length, then by tokens, in pieces.

        Raises:
            EngramFileError: the records are damaged, or their number is not that of the header.
            EngramError: the table has version 1, and so no n-grams.
        """
        if self.header.version == 1:
            raise EngramError(
                f"{self.path} has version 1, which does not store the n-grams. Build the table"
                " again from its texts."
            )
        count, before = 0, np.empty(0, np.uint32)
        for words, bounds in self._pieces():
            for records in _columns(words, bounds):
                self._check_records(records, before)
                count += len(records)
                before = records.ngrams[-1]
                yield records
        if count != self.header.entries:
            self._bad_data(f"has {count:,} records; the header says {self.header.entries:,}")

    def _pieces(self) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """Words of 4 bytes of the records, and where each record starts and the last one ends."""
        position, end = self.header.data_offset, self.header.data_offset + self.header.data_bytes
        size = _PIECE
        while position < end:
            words = np.frombuffer(self._read(position, min(size, end - position), "data"), WORD)
            bounds = self._bounds(words, (end - position) // 4)
            if len(bounds) > 1:
                yield words, np.array(bounds)
                position += 4 * bounds[-1]
                size = _PIECE
            else:
                size *= 2  # a record longer than the piece

    def _bounds(self, words: NDArray[np.uint32], left: int) -> list[int]:
        """Starts of the whole records in `words` and the end of the last one.

        `left`: words to the end of all records.
        """
        view, have, bounds, place = words.data, len(words), [0], 0
        while place + 2 <= have:
            order, followers = view[place], view[place + 1]
            if not self.header.shortest <= order <= self.header.longest:
                self._bad_data(f"has a record of order {order}, which the header excludes")
            if not followers:
                self._bad_data("has a record without tokens")
            place += 2 + order + 2 * followers
            if place > left:
                self._bad_data(f"has a record of {followers:,} tokens, which passes the file's end")
            if place > have:
                break
            bounds.append(place)
        if have == left != bounds[-1]:
            self._bad_data("ends inside a record")
        return bounds

    def _check_records(self, records: Records, before: NDArray[np.uint32]) -> None:
        largest = max(int(records.ngrams.max()), int(records.tokens.max()))
        if largest >= self.header.vocabulary:
            self._bad_data(
                f"has token {largest}; the vocabulary has {self.header.vocabulary:,} tokens"
            )
        ngrams = records.ngrams
        if len(before) == records.order:
            ngrams = np.concatenate([before[None], ngrams])
        if len(before) > records.order or not _ascend(ngrams):
            self._bad_data("has records out of order, or an n-gram twice")
        _check_pairs(records, self._bad_data)

    def _find(self, ngram: tuple[int, ...]) -> Entry | None:
        header = self.header
        row = np.array([ngram], np.int64)
        if row.min() < 0 or row.max() >= (header.vocabulary or 2**32):
            return None
        hashed = int(hashes(row.astype(np.uint32))[0])
        place = hashed & (header.table_size - 1)
        for _ in range(header.table_size):
            raw = self._read(header.table_offset + place * SLOT_BYTES, SLOT_BYTES, "table")
            slot = np.frombuffer(raw, header.slot)[0]
            if not slot["hash"]:
                return None
            if slot["hash"] == hashed:
                entry = self._entry_at(hashed, int(slot["offset"]))
                if entry.ngram is None or entry.ngram == ngram:
                    return entry
            place = (place + 1) & (header.table_size - 1)
        return None

    def _entries_1(self) -> Iterator[Entry]:
        for slots in self.slots():
            for slot in slots:
                yield self._entry_at(int(slot["hash"]), int(slot["offset"]))

    def _entry_at(self, hashed: int, offset: int) -> Entry:
        """The entry whose record starts at `offset` in the data."""
        version_2 = self.header.version == 2
        words = self._words(offset, 2 if version_2 else 1)
        order, followers = (int(words[0]) if version_2 else 0), int(words[-1])
        if not followers or (version_2 and order > self.header.longest):
            self._bad_data(f"has no record at offset {offset:,}, where a slot points")
        ngram = self._words(offset + 8, order)
        pairs = self._words(offset + 4 * len(words) + 4 * order, 2 * followers).reshape(-1, 2)
        record = Records(ngram[None], np.array([followers]), pairs[:, 0], pairs[:, 1])
        _check_pairs(record, self._bad_data, ties=version_2)
        known = tuple(ngram.tolist()) if version_2 else None
        return Entry(hashed, known, tuple((token, often) for token, often in pairs.tolist()))

    def _words(self, offset: int, count: int) -> NDArray[np.uint32]:
        """Words of the data from this offset in bytes."""
        if offset + 4 * count > self.header.data_bytes:
            problem = f"ends at byte {self.header.data_bytes:,}; a slot points at byte {offset:,}"
            self._bad_data(f"{problem}, to {4 * count:,} bytes")
        return np.frombuffer(self._read(self.header.data_offset + offset, 4 * count, "data"), WORD)

    def _read(self, start: int, size: int, field: str) -> bytes:
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        raw = b""
        while len(raw) < size:
            try:
                piece = os.pread(self._descriptor, size - len(raw), start + len(raw))
            except OSError as error:
                raise EngramError(f"cannot read {self.path}: {error.strerror}") from error
            if not piece:
                self._bad(field, f"was truncated while it was read, at byte {start + len(raw):,}")
            raw += piece
        return raw

    def _bad_data(self, problem: str) -> NoReturn:
        self._bad("data", problem)

    def _bad(self, field: str, problem: str) -> NoReturn:
        raise EngramFileError(
            f"{self.path}: {field} {problem}. The file is damaged; build or copy it again.",
            field=field,
        )


def _ascend(rows: NDArray[np.uint32]) -> bool:
    """Whether each row comes after the row before it, in lexicographic order."""
    before, after = rows[:-1], rows[1:]
    column = (before != after).argmax(axis=1)[:, None]
    return bool(
        (np.take_along_axis(after, column, 1) > np.take_along_axis(before, column, 1)).all()
    )


def _slot_sum(hashed: NDArray[np.uint64], offsets: NDArray[np.uint64]) -> int:
    """A sum that depends on which hash has which offset, but not on their order."""
    return int((hashed * (offsets * np.uint64(2) + np.uint64(1))).sum(dtype=np.uint64))


def _columns(words: NDArray[np.uint32], bounds: NDArray[np.int64]) -> Iterator[Records]:
    """The records between these bounds; those of different orders apart."""
    starts = bounds[:-1]
    orders = words[starts]
    cuts = np.flatnonzero(np.diff(orders)) + 1
    for part in np.split(starts, cuts):
        order = int(words[part[0]])
        sizes = words[part + 1].astype(np.int64)
        ngrams = words[part[:, None] + np.arange(2, 2 + order)]
        pairs = pair_places(part + 2 + order, sizes)
        yield Records(ngrams, sizes, words[pairs], words[pairs + 1])


def _check_pairs(records: Records, bad: Callable[[str], NoReturn], *, ties: bool = True) -> None:
    """Check that frequencies are above 0 and fall; with `ties`, equal ones by rising tokens."""
    if not records.frequencies.all():
        bad("has a frequency of 0")
    frequencies, tokens = records.frequencies, records.tokens
    falls = frequencies[:-1] > frequencies[1:]
    equal = frequencies[:-1] == frequencies[1:]
    sound = falls | (equal & (tokens[:-1] < tokens[1:]) if ties else equal)
    sound[records.starts[1:] - 1] = True  # pairs of two records
    if not sound.all():
        bad("has a record whose frequencies do not fall, or a token twice")
