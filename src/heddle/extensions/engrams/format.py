"""The format of engram tables (`.engr`), versions 1 and 2: structures, sizes, hashes, checks.

docs/guides/engrams.md specifies both versions. All integers are little-endian and unsigned.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.errors import EngramFileError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

MAGIC: Final = 0x454E4752
LONGEST_ORDER: Final = 16
SLOT_BYTES: Final = 16
LARGEST_FREQUENCY: Final = 2**32 - 1

WORD: Final = np.dtype("<u4")
SLOT_1: Final[np.dtype[Any]] = np.dtype([("hash", "<u8"), ("offset", "<u4"), ("count", "<u4")])
SLOT_2: Final[np.dtype[Any]] = np.dtype([("hash", "<u8"), ("offset", "<u8")])

_HEADER_1 = struct.Struct("<5I")
_HEADER_2 = struct.Struct("<4I8Q32s16x")
_FILTER_BITS_PER_ENTRY = 16
_SMALLEST_FILTER = 64

_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a table: the number of its token ids, and its fingerprint."""

    size: int
    fingerprint: bytes

    @classmethod
    def of(cls, tokens: Iterable[tuple[bytes, bool]]) -> Vocabulary:
        """The vocabulary of these tokens; see :func:`vocabulary_fingerprint`."""
        known = list(tokens)
        return cls(len(known), vocabulary_fingerprint(known))


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a table. Offsets and sizes are in bytes, from the start of the file.

    Attributes:
        version: 1 or 2.
        longest: tokens of the longest n-grams, 1 to 16 (version 1: of all n-grams).
        shortest: tokens of the shortest n-grams.
        table_size: slots of the hash table, a power of two.
        entries: the number of n-grams.
        filter_bits: bits of the Bloom filter, a power of two; 0 in version 1, which has no filter.
        filter_offset: start of the filter.
        table_offset: start of the hash table.
        data_offset: start of the records.
        data_bytes: size of the records.
        vocabulary: the number of token ids; 0 in version 1, which does not say.
        fingerprint: see :func:`vocabulary_fingerprint`; empty in version 1.
    """

    version: int
    longest: int
    shortest: int
    table_size: int
    entries: int
    filter_bits: int
    filter_offset: int
    table_offset: int
    data_offset: int
    data_bytes: int
    vocabulary: int
    fingerprint: bytes

    SIZE = _HEADER_2.size
    """Bytes of the header of version 2. That of version 1 is shorter."""

    @classmethod
    def sized(
        cls,
        version: int,
        orders: tuple[int, int],
        *,
        entries: int,
        data_bytes: int,
        vocabulary: Vocabulary,
    ) -> Header:
        """The header of a file with this content. `orders`: the shortest and the longest."""
        bits = filter_bits(entries) if version == 2 else 0
        slots = table_size(entries)
        table = _HEADER_2.size + bits // 8 if version == 2 else _HEADER_1.size
        return cls(
            version=version,
            longest=orders[1],
            shortest=orders[0],
            table_size=slots,
            entries=entries,
            filter_bits=bits,
            filter_offset=_HEADER_2.size if version == 2 else _HEADER_1.size,
            table_offset=table,
            data_offset=table + slots * SLOT_BYTES,
            data_bytes=data_bytes,
            vocabulary=vocabulary.size if version == 2 else 0,
            fingerprint=vocabulary.fingerprint if version == 2 else b"",
        )

    @property
    def slot(self) -> np.dtype[Any]:
        """A slot of the hash table. In version 1 `offset` has 32 bits."""
        return SLOT_1 if self.version == 1 else SLOT_2

    def pack(self) -> bytes:
        """The bytes of the header."""
        if self.version == 1:
            return _HEADER_1.pack(MAGIC, 1, self.longest, self.table_size, self.entries)
        return _HEADER_2.pack(
            *(MAGIC, 2, self.longest, self.shortest, self.table_size, self.entries),
            *(self.filter_bits, self.filter_offset, self.table_offset, self.data_offset),
            *(self.data_bytes, self.vocabulary, self.fingerprint),
        )

    @classmethod
    def parse(cls, raw: bytes, file_size: int, name: str) -> Header:
        """The header at the start of a file of `file_size` bytes, checked against that size.

        Args:
            raw: the first bytes of the file, at least `SIZE` of them if the file has as many.
            file_size: in bytes.
            name: the file, for errors.

        Raises:
            EngramFileError: the file is no engram table, or a field is impossible.
        """
        checks = _Checks(name, file_size)
        checks.length("header", raw, 8)
        magic, version = struct.unpack_from("<2I", raw)
        checks.that(magic == MAGIC, "magic", f"is 0x{magic:08X}, not 0x{MAGIC:08X}", _NO_TABLE)
        checks.that(version in {1, 2}, "version", f"is {version}; this Heddle reads 1 and 2")
        return _parse_1(raw, checks) if version == 1 else _parse_2(raw, checks)


_NO_TABLE = "This is no engram table. Build one with `heddle engram build`"
_DAMAGED = "The file is damaged; build or copy it again"


@dataclass(frozen=True, slots=True)
class _Checks:
    """Raises errors that name the file, the field and its value."""

    name: str
    file_size: int

    def that(self, holds: bool, field: str, problem: str, way_out: str = _DAMAGED) -> None:
        if not holds:
            raise EngramFileError(f"{self.name}: {field} {problem}. {way_out}.", field=field)

    def length(self, field: str, raw: bytes, needed: int) -> None:
        problem = f"needs {needed} bytes; the file has {self.file_size:,}"
        self.that(len(raw) >= needed, field, problem)

    def table(self, field: str, size: int, entries: int) -> None:
        self.that(size >= 2 and not size & (size - 1), field, f"is {size}, not a power of two >= 2")
        problem = f"is {size:,}, less than twice the {entries:,} entries"
        self.that(size >= 2 * entries, field, problem)

    def order(self, field: str, order: int, longest: int) -> None:
        self.that(1 <= order <= longest, field, f"is {order}, not in 1 to {longest}")


def _parse_1(raw: bytes, checks: _Checks) -> Header:
    checks.length("header", raw, _HEADER_1.size)
    _, _, order, slots, entries = _HEADER_1.unpack_from(raw)
    checks.order("order", order, LONGEST_ORDER)
    checks.table("table_size", slots, entries)
    data = _HEADER_1.size + slots * SLOT_BYTES
    checks.that(data <= checks.file_size, "table", f"ends at byte {data:,}, after the file's end")
    return Header(
        *(1, order, order, slots, entries, 0),
        *(_HEADER_1.size, _HEADER_1.size, data, checks.file_size - data, 0, b""),
    )


def _parse_2(raw: bytes, checks: _Checks) -> Header:
    checks.length("header", raw, _HEADER_2.size)
    (_, _, longest, shortest, slots, entries, bits, filter_offset, table, data, size, vocabulary,
     fingerprint) = _HEADER_2.unpack_from(raw)  # fmt: skip
    checks.order("longest_order", longest, LONGEST_ORDER)
    checks.order("shortest_order", shortest, longest)
    checks.table("table_size", slots, entries)
    power = bits >= _SMALLEST_FILTER and not bits & (bits - 1)
    checks.that(power, "filter_bits", f"is {bits}, not a power of two >= {_SMALLEST_FILTER}")
    end = _HEADER_2.size
    for part, offset, nbytes in (
        ("filter", filter_offset, bits // 8),
        ("table", table, slots * SLOT_BYTES),
        ("data", data, size),
    ):
        field = f"{part}_offset"
        checks.that(offset % 8 == 0, field, f"is {offset:,}, not a multiple of 8")
        problem = f"is {offset:,}, inside the part before it, which ends at byte {end:,}"
        checks.that(offset >= end, field, problem)
        end = offset + nbytes
        problem = f"ends at byte {end:,}; the file has {checks.file_size:,} bytes"
        checks.that(end <= checks.file_size, part, problem)
    problem = f"ends at byte {end:,}, before the file's end at {checks.file_size:,}"
    checks.that(end == checks.file_size, "data", problem)
    checks.that(size % 4 == 0, "data_bytes", f"is {size:,}, not a multiple of 4")
    checks.that(0 < vocabulary <= 2**32, "vocabulary", f"is {vocabulary:,}, not in 1 to 2^32")
    spare = raw[_HEADER_2.size - 16 : _HEADER_2.size]
    checks.that(not any(spare), "header", "has bytes other than 0 at 112 to 127")
    return Header(
        *(2, longest, shortest, slots, entries, bits, filter_offset, table, data, size),
        *(vocabulary, fingerprint),
    )


def table_size(entries: int) -> int:
    """Slots for this many entries: the least power of two that is at least twice as large."""
    return max(2, 1 << (2 * entries - 1).bit_length()) if entries else 2


def filter_bits(entries: int) -> int:
    """Bits of the filter for this many entries: 16 for each, rounded up to a power of two."""
    return max(_SMALLEST_FILTER, 1 << max(0, _FILTER_BITS_PER_ENTRY * entries - 1).bit_length())


def hashes(ngrams: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """FNV-1a 64 of n-grams (count, n), over the 4 little-endian bytes of each token; (count,).

    A hash of 0 becomes 1, because 0 marks an empty slot. Source: Fowler, Noll and Vo, RFC 9923.
    """
    result = np.full(len(ngrams), _FNV_BASIS, np.uint64)
    for column in ngrams.T:
        for shift in (0, 8, 16, 24):
            result ^= (column >> np.uint32(shift)).astype(np.uint64) & np.uint64(0xFF)
            result *= _FNV_PRIME
    result[result == 0] = 1
    return result


def filter_places(hashed: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """The two bits of the filter that each hash sets, (2, count). `bits`: the filter's size."""
    mask = np.uint64(bits - 1)
    first = (hashed >> np.uint64(32)) & mask
    return np.stack([first, ((hashed * _GOLDEN) >> np.uint64(16)) & mask])


def vocabulary_fingerprint(tokens: Iterable[tuple[bytes, bool]]) -> bytes:
    """SHA-256 of a vocabulary. Models with equal fingerprints share tables.

    Args:
        tokens: for each token id from 0, its bytes and whether it is a control token. The bytes of
            a control token are its text.
    """
    digest = hashlib.sha256()
    for raw, control in tokens:
        digest.update(struct.pack("<I", len(raw)) + raw + bytes([control]))
    return digest.digest()
