"""Writes engram tables byte by byte, independently of Heddle.

docs/guides/engrams.md specifies them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Entries = Mapping[tuple[int, ...], Mapping[int, int]]
"""For each n-gram the tokens that followed it, with their frequencies."""

FINGERPRINT = bytes(range(32))


def fnv1a(tokens: Sequence[int]) -> int:
    result = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(tokens)}I", *tokens):
        result = (result ^ byte) * 0x100000001B3 % 2**64
    return result or 1


def falling(followers: Mapping[int, int]) -> list[tuple[int, int]]:
    return sorted(followers.items(), key=lambda pair: (-pair[1], pair[0]))


def pairs(followers: Mapping[int, int]) -> bytes:
    return b"".join(struct.pack("<II", *pair) for pair in falling(followers))


def power_of_two(least: int, wanted: int) -> int:
    while least < wanted:
        least *= 2
    return least


def slots_of(hashes: list[int], size: int) -> list[int | None]:
    """For each slot the index of its hash; None if it is empty.

    The hashes come in the order of their home slots, as in the files that Heddle writes.
    """
    slots: list[int | None] = [None] * size
    for index in sorted(range(len(hashes)), key=lambda i: (hashes[i] % size, hashes[i], i)):
        place = hashes[index] % size
        while slots[place] is not None:
            place = (place + 1) % size
        slots[place] = index
    return slots


def version_1(entries: Entries) -> bytes:
    """A table of version 1. All n-grams have one length."""
    (order,) = {len(ngram) for ngram in entries}
    data, offsets = b"", []
    ordered = sorted(entries)
    for ngram in ordered:
        offsets.append(len(data))
        data += struct.pack("<I", len(entries[ngram])) + pairs(entries[ngram])
    size = power_of_two(2, 2 * len(entries))
    table = b""
    for index in slots_of([fnv1a(ngram) for ngram in ordered], size):
        if index is None:
            table += bytes(16)
        else:
            count = sum(entries[ordered[index]].values())
            table += struct.pack("<QII", fnv1a(ordered[index]), offsets[index], count)
    return struct.pack("<5I", 0x454E4752, 1, order, size, len(entries)) + table + data


def version_2(
    entries: Entries,
    *,
    vocabulary: int = 1000,
    fingerprint: bytes = FINGERPRINT,
    hash_of: Callable[[tuple[int, ...]], int] = fnv1a,
) -> bytes:
    """A table of version 2, as Heddle writes it: records by length, then by n-gram.

    With another `hash_of`, all n-grams can have one hash.
    """
    orders = [len(ngram) for ngram in entries] or [1]
    data, offsets = b"", []
    ordered = sorted(entries, key=lambda ngram: (len(ngram), ngram))
    for ngram in ordered:
        offsets.append(len(data))
        followers = entries[ngram]
        data += struct.pack(f"<{2 + len(ngram)}I", len(ngram), len(followers), *ngram)
        data += pairs(followers)
    hashes = [hash_of(ngram) for ngram in ordered]
    bits, size = power_of_two(64, 16 * len(entries)), power_of_two(2, 2 * len(entries))
    filter_bytes = bytearray(bits // 8)
    for hashed in hashes:
        for bit in (hashed >> 32, (hashed * 0x9E3779B97F4A7C15 % 2**64) >> 16):
            filter_bytes[bit % bits // 8] |= 1 << bit % 8
    table = b"".join(
        bytes(16) if index is None else struct.pack("<QQ", hashes[index], offsets[index])
        for index in slots_of(hashes, size)
    )
    at = 128 + len(filter_bytes)
    header = struct.pack("<4I", 0x454E4752, 2, max(orders), min(orders))
    header += struct.pack("<4Q", size, len(entries), bits, 128)
    header += struct.pack("<4Q", at, at + len(table), len(data), vocabulary)
    return (header + fingerprint).ljust(128, b"\0") + bytes(filter_bytes) + table + data


def write_version_1(path: Path, entries: Entries) -> Path:
    path.write_bytes(version_1(entries))
    return path


def write_version_2(
    path: Path, entries: Entries, vocabulary: int, fingerprint: bytes = FINGERPRINT
) -> Path:
    path.write_bytes(version_2(entries, vocabulary=vocabulary, fingerprint=fingerprint))
    return path
