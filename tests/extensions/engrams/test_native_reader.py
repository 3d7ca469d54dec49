"""The native reader of engrams, on sound and on damaged files."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram_writer import Entries, fnv1a, write_version_1, write_version_2
from heddle._native import Engram

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOCABULARY = 50
TABLE: Entries = {
    (3, 4, 5): {6: 3, 7: 1},
    (4, 5): {8: 1, 9: 2, 10: 1},
    (5,): {11: 5},
    (1, 2, 3): {12: 1},
}


def opened(path: Path, vocabulary: int = 0) -> Engram:
    with path.open("rb") as file:
        return Engram(file.fileno(), vocabulary)


def two(tmp_path: Path, table: Entries = TABLE) -> Path:
    return write_version_2(tmp_path / "two.engr", table, VOCABULARY, bytes(range(32)))


def trigrams(count: int = 200) -> Entries:
    rng = np.random.default_rng(count)
    ngrams = {tuple(map(int, row)) for row in rng.integers(0, VOCABULARY, (count, 3))}
    return {ngram: {int(t): 1 + int(t) % 4 for t in rng.integers(0, 50, 5)} for ngram in ngrams}


def test_the_longest_order_predicts_and_shorter_ones_back_off(tmp_path: Path) -> None:
    engram = opened(two(tmp_path))
    assert engram.predict([3, 4, 5]) == [(6, 0.75), (7, 0.25)]
    assert engram.predict([0, 3, 4, 5]) == engram.predict([3, 4, 5])
    assert engram.predict([9, 4, 5]) == [(9, 0.5), (8, 0.25), (10, 0.25)]
    assert engram.predict([4, 5]) == [(9, 0.5), (8, 0.25), (10, 0.25)]
    assert engram.predict([5]) == [(11, 1.0)]
    assert engram.predict([3, 4]) == []
    assert engram.predict([]) == []


def test_the_header_is_readable(tmp_path: Path) -> None:
    engram = opened(two(tmp_path))
    assert (engram.version, engram.orders, engram.entries) == (2, (1, 3), 4)
    assert (engram.vocabulary, engram.fingerprint) == (VOCABULARY, bytes(range(32)))
    one = opened(write_version_1(tmp_path / "one.engr", trigrams()), VOCABULARY)
    assert (one.version, one.orders, one.entries) == (1, (3, 3), len(trigrams()))
    assert (one.vocabulary, one.fingerprint) == (VOCABULARY, bytes(32))


@pytest.mark.parametrize("version", [1, 2])
def test_every_ngram_of_a_table_is_found_and_no_other(version: int, tmp_path: Path) -> None:
    table = trigrams()
    path = tmp_path / "x.engr"
    if version == 1:
        engram = opened(write_version_1(path, table), VOCABULARY)
    else:
        engram = opened(write_version_2(path, table, VOCABULARY))
    for ngram, followers in table.items():
        total = sum(followers.values())
        expected = sorted(followers.items(), key=lambda pair: (-pair[1], pair[0]))
        assert engram.predict(ngram) == [(token, count / total) for token, count in expected]
    others = [(a, b, 51) for a in range(50) for b in range(50)]
    assert all(engram.predict(ngram) == [] for ngram in others)
    looked_up, filtered, found = engram.counts
    assert (looked_up, found) == (len(table) + len(others), len(table))
    assert filtered > 0.95 * len(others)


def test_version_1_needs_a_vocabulary(tmp_path: Path) -> None:
    path = write_version_1(tmp_path / "one.engr", trigrams())
    with pytest.raises(ValueError, match=r"^vocabulary: version 1 does not say it; name it"):
        opened(path)


def test_a_collision_of_hashes_is_a_miss_in_version_2(tmp_path: Path) -> None:
    """The record of another n-gram lies at the slot with the hash of this one."""
    path = write_version_2(tmp_path / "x.engr", {(1, 2): {3: 1}}, VOCABULARY)
    content = bytearray(path.read_bytes())
    record = content.index(struct.pack("<4I", 2, 1, 1, 2))
    content[record + 8 : record + 16] = struct.pack("<2I", 7, 7)
    path.write_bytes(content)
    assert opened(path).predict([1, 2]) == []


def test_at_most_64_predictions_share_the_mass_of_the_whole_record(tmp_path: Path) -> None:
    followers = {token: 1000 - token for token in range(600)}
    path = write_version_2(tmp_path / "x.engr", {(1,): followers}, 600)
    total = sum(followers.values())
    expected = [(token, followers[token] / total) for token in range(64)]
    assert opened(path).predict([1]) == expected


def test_tokens_outside_of_the_vocabulary_are_never_predicted(tmp_path: Path) -> None:
    table = {(1,): {2: 1, VOCABULARY: 1, 2**32 - 1: 2}}
    one = write_version_1(tmp_path / "one.engr", table)
    assert opened(one, VOCABULARY).predict([1]) == [(2, 0.25)]
    assert opened(write_version_2(one, table, VOCABULARY)).predict([1]) == [(2, 0.25)]


def test_a_file_that_becomes_shorter_predicts_nothing(tmp_path: Path) -> None:
    path = two(tmp_path)
    engram = opened(path)
    os.truncate(path, 200)
    assert engram.predict([3, 4, 5]) == []
    path.unlink()
    assert engram.predict([5]) == []


def test_a_full_table_ends_the_search(tmp_path: Path) -> None:
    """All slots are taken, so that a search for an empty one would have no end."""
    path = two(tmp_path)
    content = bytearray(path.read_bytes())
    content[128:136] = b"\xff" * 8  # the filter stops nothing
    for slot in range(136, 136 + 8 * 16, 16):
        content[slot : slot + 8] = b"\x01" * 8
    path.write_bytes(content)
    assert opened(path).predict([3, 4, 5]) == []


def put(at: int, code: str, *values: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        struct.pack_into(code, content, at, *values)

    return change


def cut(length: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[length:]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut(0), "length: the file has 0 bytes"),
        (cut(100), "length: the file has 100 bytes and needs 128"),
        (cut(300), "offset: .* beyond the file|data_bytes|length"),
        (lambda content: content.append(0), "length: bytes follow the data"),
        (put(0, "<I", 1), "magic: the file is no engram"),
        (put(4, "<I", 3), "version: is 3; Heddle reads versions 1 and 2"),
        (put(8, "<I", 17), "order: is 17"),
        (put(8, "<I", 0), "order: is 0"),
        (put(12, "<I", 4), "shortest order: is 4"),
        (put(12, "<I", 0), "shortest order: is 0"),
        (put(16, "<Q", 12), "table_size: is 12, which is no power of two"),
        (put(16, "<Q", 2**60), "table_size: .* more slots"),
        (put(24, "<Q", 5), "num_entries: is 5; at most half"),
        (put(32, "<Q", 32), "filter_bits: is 32"),
        (put(32, "<Q", 2**63), "filter_bits: exceeds the file"),
        (put(40, "<Q", 120), "offset: filter, table and data overlap"),
        (put(48, "<Q", 128), "offset: filter, table and data overlap"),
        (put(56, "<Q", 2**64 - 8), "offset: .* is beyond the file"),
        (put(56, "<Q", 137), "offset: .* no multiple of 8"),
        (put(64, "<Q", 2**64 - 1), "data_bytes: exceeds the file"),
        (put(72, "<Q", 0), "vocabulary: has 0 tokens"),
        (put(72, "<Q", 2**32), "vocabulary: has 4294967296 tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_header_is_refused_by_name(
    change: Callable[[bytearray], None], message: str, tmp_path: Path
) -> None:
    path = two(tmp_path)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{message}"):
        opened(path)


@pytest.mark.parametrize("change", [put(12, "<I", 2**28), put(12, "<I", 3), put(16, "<I", 2**31)])
def test_a_bad_header_of_version_1_is_refused(
    change: Callable[[bytearray], None], tmp_path: Path
) -> None:
    path = write_version_1(tmp_path / "one.engr", trigrams())
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^(table_size|num_entries): is"):
        opened(path, VOCABULARY)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), version=st.sampled_from([1, 2]))
def test_a_damaged_file_is_refused_or_predicts_sound_tokens(
    data: st.DataObject, version: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "x.engr"
    if version == 1:
        write_version_1(path, {key: value for key, value in TABLE.items() if len(key) == 3})
    else:
        two(path.parent).rename(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = 4 * data.draw(st.integers(0, len(content) // 4 - 1))
        value = data.draw(st.sampled_from([0, 1, 2, 255, 2**31, 2**32 - 1, fnv1a([5]) % 2**32]))
        struct.pack_into("<I", content, at, value)
    path.write_bytes(content[: data.draw(st.sampled_from([None, len(content) - 3, 150]))])
    try:
        engram = opened(path, VOCABULARY)
    except ValueError:
        return
    for tokens in ([3, 4, 5], [9, 4, 5], [5], [1, 2, 3]):
        found = engram.predict(tokens)
        assert all(0 <= token < VOCABULARY and 0 < p <= 1 for token, p in found)
        assert len(found) <= 64
