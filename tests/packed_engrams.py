"""Writes engrams for tests, by the text of docs/engrams.md and without the code of the builder."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Table = Mapping[tuple[int, ...], Mapping[int, int]]
"""N-grams of token ids, and the frequency of each token after them."""

MAGIC = 0x454E4752
NO_FINGERPRINT = bytes(32)


def fnv(tokens: Sequence[int]) -> int:
    """FNV-1a 64 over 4 little-endian bytes of each token."""
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(tokens)}I", *tokens):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def write_version_1(path: Path, table: Table, size: int | None = None) -> Path:
    """All n-grams of `table` have one order. `size` is the number of slots."""
    (order,) = {len(ngram) for ngram in table}
    size = size or size_for(len(table))
    slots, data = [(0, 0, 0)] * size, b""
    for ngram, followers in table.items():
        hashed, place = fnv(ngram), fnv(ngram) % size
        while slots[place][0]:
            place = (place + 1) % size
        slots[place] = (hashed, len(data), sum(followers.values()))
        data += struct.pack("<I", len(followers)) + pairs_of(followers)
    header = struct.pack("<5I", MAGIC, 1, order, size, len(table))
    path.write_bytes(header + b"".join(struct.pack("<QII", *slot) for slot in slots) + data)
    return path


def write_version_2(
    path: Path,
    table: Table,
    vocabulary: int,
    fingerprint: bytes = NO_FINGERPRINT,
    orders: tuple[int, int] | None = None,
) -> Path:
    """`orders` are the fewest and most tokens of an n-gram."""
    size = size_for(len(table))
    bits = 64
    while bits < 16 * len(table):
        bits *= 2
    slots, data, filter_ = [(0, 0)] * size, b"", bytearray(bits // 8)
    for ngram, followers in table.items():
        hashed = fnv(ngram) or 1
        for bit in (hashed >> 32, hashed * 0x9E3779B97F4A7C15 % 2**64 >> 16):
            filter_[bit % bits // 8] |= 1 << bit % 8
        place = hashed % size
        while slots[place][0]:
            place = (place + 1) % size
        slots[place] = (hashed, len(data))
        counts = (len(ngram), len(followers))
        data += struct.pack(f"<II{len(ngram)}I", *counts, *ngram) + pairs_of(followers)
    lengths = {len(ngram) for ngram in table} or {1}
    shortest, longest = orders or (min(lengths), max(lengths))
    table_at = 128 + len(filter_)
    data_at = table_at + 16 * size
    numbers = (size, len(table), bits, 128, table_at, data_at, len(data), vocabulary)
    header = struct.pack("<4I8Q", MAGIC, 2, longest, shortest, *numbers) + fingerprint
    packed = b"".join(struct.pack("<QQ", *slot) for slot in slots)
    path.write_bytes(header.ljust(128, b"\0") + filter_ + packed + data)
    return path


def size_for(entries: int) -> int:
    """The smallest table for so many entries."""
    size = 2
    while size < 2 * entries:
        size *= 2
    return size


def pairs_of(followers: Mapping[int, int]) -> bytes:
    """The pairs of a record, falling by frequency, ties to the lower token."""
    ranked = sorted(followers.items(), key=lambda pair: (-pair[1], pair[0]))
    return b"".join(struct.pack("<II", *pair) for pair in ranked)
