"""Engram tables: what the reader finds, and what it refuses."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engram_writer import FINGERPRINT, falling, fnv1a, version_1, version_2
from heddle import _native
from heddle.errors import EngramError, EngramFileError
from heddle.extensions.engrams import format, reader
from heddle.extensions.engrams.reader import Engram

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.extensions.engrams.records import Entry

TRIGRAMS = {(1, 2, 3): {4: 7, 5: 9, 900: 1}, (2, 3, 4): {5: 1}, (0, 0, 0): {0: 2, 1: 2, 999: 3}}
BACK_OFF = {**TRIGRAMS, (3,): {4: 8, 5: 9}, (999,): {1: 1}, (2, 3): {4: 2, 5: 2}}


def opened(tmp_path: Path, content: bytes) -> Engram:
    path = tmp_path / "table.engr"
    path.write_bytes(content)
    return Engram.open(path)


def content(table: Engram) -> dict[tuple[int, ...] | int, list[tuple[int, int]]]:
    return {entry.ngram or entry.hash: list(entry.followers) for entry in table.entries()}


def test_version_2_has_all_entries_in_order(tmp_path: Path) -> None:
    with opened(tmp_path, version_2(BACK_OFF)) as table:
        assert (table.header.shortest, table.header.longest) == (1, 3)
        assert (table.header.vocabulary, table.header.fingerprint) == (1000, FINGERPRINT)
        found = content(table)
    assert found == {ngram: falling(followers) for ngram, followers in BACK_OFF.items()}
    assert list(found) == sorted(found, key=lambda ngram: (len(ngram), ngram))


def test_version_1_has_all_entries_by_hash(tmp_path: Path) -> None:
    with opened(tmp_path, version_1(TRIGRAMS)) as table:
        assert (table.header.shortest, table.header.longest) == (3, 3)
        assert content(table) == {fnv1a(ngram): falling(TRIGRAMS[ngram]) for ngram in TRIGRAMS}
        with pytest.raises(EngramError, match="does not store the n-grams"):
            next(table.records())


@pytest.mark.parametrize("write", [version_1, version_2])
def test_a_look_up_finds_the_tokens_after_the_last_ones(tmp_path: Path, write) -> None:
    with opened(tmp_path, write(TRIGRAMS)) as table:
        found = table.look_up([8, 9, 1, 2, 3])
        assert found is not None
        assert found.followers == ((5, 9), (4, 7), (900, 1))
        for absent in ([1, 2, 4], [2, 3], [], [1, 2, -3], [1, 2, 2**40]):
            assert table.look_up(absent) is None


def test_a_look_up_takes_the_longest_ngram(tmp_path: Path) -> None:
    with opened(tmp_path, version_2(BACK_OFF)) as table:
        for tokens, ngram in (
            ((1, 2, 3), (1, 2, 3)),
            ((9, 2, 3), (2, 3)),
            ((2, 9, 3), (3,)),
            ((3,), (3,)),
        ):
            assert table.look_up(tokens).ngram == ngram


def test_a_collision_of_hashes_is_a_miss(tmp_path: Path) -> None:
    content = version_2({(1, 2): {3: 4}, (2, 1): {5: 6}}, hash_of=lambda _: fnv1a((1, 2)))
    with opened(tmp_path, content) as table:
        assert table.look_up((1, 2)).followers == ((3, 4),)
        assert table.look_up((2, 1)) is None
    content = version_2({(2, 1): {5: 6}}, hash_of=lambda _: fnv1a((1, 2)))
    with opened(tmp_path, content) as table:
        assert table.look_up((1, 2)) is None


WRAPPED = {(token,): {token: 1} for token in range(40) if fnv1a((token,)) % 8 == 7}
WRAPPED = dict([*WRAPPED.items()][:3])
"""Three n-grams whose home is the last slot of eight, so that two of them are at the beginning."""


@pytest.mark.parametrize("write", [version_1, version_2])
def test_a_search_wraps_around_at_the_end_of_the_table(tmp_path: Path, write) -> None:
    with opened(tmp_path, write(WRAPPED)) as table:
        assert (len(WRAPPED), table.header.table_size) == (3, 8)
        for ngram in WRAPPED:
            assert table.look_up(ngram).followers == ((ngram[0], 1),)
    with (tmp_path / "table.engr").open("rb") as file:
        native = _native.Engram(file.fileno(), 1000)
    assert [native.predict(ngram) for ngram in WRAPPED] == [[(token, 1.0)] for (token,) in WRAPPED]


def test_a_record_may_be_longer_than_a_piece(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(reader, "_PIECE", 16)
    entries = {**BACK_OFF, (7, 7): {token: 1000 - token for token in range(50)}}
    with opened(tmp_path, version_2(entries)) as table:
        assert content(table) == {key: falling(entries[key]) for key in entries}
    with opened(tmp_path, version_1(TRIGRAMS)) as table:
        assert len(list(table.entries())) == 3


def test_hashes_are_fnv_1a(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 2**32, (50, 5), np.uint32)
    assert format.hashes(rows).tolist() == [fnv1a(tuple(row)) for row in rows.tolist()]


@pytest.mark.parametrize("entries", [0, 1, 2, 3, 4, 5, 1000, 1024, 1025])
def test_sizes_are_powers_of_two_above_the_least(entries: int) -> None:
    slots, bits = format.table_size(entries), format.filter_bits(entries)
    assert slots == min(2**n for n in range(1, 20) if 2**n >= 2 * entries)
    assert bits == min(2**n for n in range(6, 20) if 2**n >= 16 * entries)


def test_the_fingerprint_depends_on_bytes_order_and_control() -> None:
    tokens = [(b"a", False), (b"bc", False), (b"<s>", True)]
    others = [tokens[::-1], [(b"ab", False), (b"c", False), (b"<s>", True)], tokens[:2]]
    others.append([(raw, False) for raw, _ in tokens])
    prints = {format.vocabulary_fingerprint(each) for each in (tokens, *others)}
    assert len(prints) == 5
    assert all(len(each) == 32 for each in prints)


def patched(at: int, raw: bytes) -> bytes:
    sound = version_2(BACK_OFF)
    return sound[:at] + raw + sound[at + len(raw) :]


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.mark.parametrize(
    ("content", "field", "says"),
    [
        (b"", "header", "needs 8 bytes; the file has 0"),
        (b"GGUF" * 40, "magic", "is 0x46554747, not 0x454E4752. This is no engram table"),
        (patched(4, b"\3\0\0\0"), "version", "is 3; this Heddle reads 1 and 2"),
        (patched(8, b"\x11\0\0\0"), "longest_order", "is 17, not in 1 to 16"),
        (patched(12, b"\4\0\0\0"), "shortest_order", "is 4, not in 1 to 3"),
        (patched(16, u64(15)), "table_size", "is 15, not a power of two >= 2"),
        (patched(24, u64(9)), "table_size", "is 16, less than twice the 9 entries"),
        (patched(24, u64(5)), "data", "has 6 records; the header says 5"),
        (patched(32, u64(96)), "filter_bits", "is 96, not a power of two >= 64"),
        (patched(40, u64(129)), "filter_offset", "is 129, not a multiple of 8"),
        (patched(48, u64(128)), "table_offset", "is 128, inside the part before it"),
        (patched(56, u64(2**63)), "data", "ends at byte"),
        (patched(64, u64(8)), "data", "before the file's end"),
        (patched(72, u64(0)), "vocabulary", "is 0, not in 1 to 2^32"),
        (patched(72, u64(999)), "data", "has token 999; the vocabulary has 999 tokens"),
        (patched(127, b"\1"), "header", "bytes other than 0 at 112 to 127"),
        (version_1(TRIGRAMS)[:12], "header", "needs 20 bytes"),
        (version_1(TRIGRAMS)[:40], "table", "ends at byte 148, after the file's end"),
        (version_1(TRIGRAMS)[:-4], "data", "a slot points at byte"),
        (version_1(TRIGRAMS)[:16] + b"\2" + version_1(TRIGRAMS)[17:], "table", "has 3 entries"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, content: bytes, field: str, says: str) -> None:
    with pytest.raises(EngramFileError) as caught, opened(tmp_path, content) as table:
        list(table.entries())
    assert caught.value.field == field
    assert f"table.engr: {field} " in caught.value.message
    assert says in caught.value.message


def damaged(change) -> bytes:
    """A sound table of one n-gram (1, 2) whose record, in words, `change` has changed."""
    sound = version_2({(1, 2): {5: 9, 6: 9, 4: 2}})
    record = list(struct.unpack("<10I", sound[-40:]))
    return sound[:-40] + struct.pack("<10I", *change(record))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: [3, *record[1:]], "order 3, which the header excludes"),
        (lambda record: [2, 0, *record[2:]], "without tokens"),
        (lambda record: [2, 4, *record[2:]], "4 tokens, which passes the file's end"),
        (lambda record: [2, 2, *record[2:]], "order 4, which the header excludes"),
        (lambda record: [*record[:-1], 0], "frequency of 0"),
        (lambda record: [*record[:-1], 10], "frequencies do not fall"),
        (lambda record: [*record[:4], 6, 9, 5, *record[7:]], "frequencies do not fall"),
        (lambda record: [*record[:4], 5, 9, 5, *record[7:]], "a token twice"),
        (lambda record: [*record[:4], 1000, *record[5:]], "token 1000; the vocabulary has 1,000"),
    ],
)
def test_a_wrong_record_is_named(tmp_path: Path, change, says: str) -> None:
    with pytest.raises(EngramFileError, match=says), opened(tmp_path, damaged(change)) as table:
        list(table.records())


@pytest.mark.parametrize("piece", [4 << 20, 24])
def test_records_out_of_order_are_refused(tmp_path: Path, monkeypatch, piece: int) -> None:
    """Also if they are in different pieces of the file."""
    monkeypatch.setattr(reader, "_PIECE", piece)
    sound = version_2({(1, 2): {3: 4}, (1, 3): {3: 4}})
    for records in (sound[-24:] + sound[-48:-24], sound[-24:] * 2):
        changed = sound[:-48] + records
        with pytest.raises(EngramFileError, match="out of order"), opened(tmp_path, changed) as t:
            list(t.entries())
    mixed = version_2({(3,): {3: 4}, (1, 2): {3: 4}})
    changed = mixed[:-44] + mixed[-24:] + mixed[-44:-24]
    with pytest.raises(EngramFileError, match="out of order"), opened(tmp_path, changed) as t:
        list(t.entries())


def test_slots_that_point_elsewhere_are_refused(tmp_path: Path) -> None:
    sound = version_2({(1, 2): {3: 4}, (7, 8): {3: 4}})
    with opened(tmp_path, sound) as table:
        table.check_slots()
        start, end = table.header.table_offset, table.header.data_offset
    slots = [bytearray(sound[at : at + 16]) for at in range(start, end, 16)]
    one, two = (slot for slot in slots if any(slot))
    one[8:], two[8:] = two[8:], one[8:]
    changed = sound[:start] + b"".join(slots) + sound[end:]
    with pytest.raises(EngramFileError, match="do not point"), opened(tmp_path, changed) as table:
        table.check_slots()
    emptied = sound[:start] + bytes(16) * 4 + sound[end:]
    with pytest.raises(EngramFileError, match="has 0 entries"), opened(tmp_path, emptied) as table:
        table.check_slots()


def test_claimed_sizes_are_not_allocated(tmp_path: Path) -> None:
    record = lambda words: [2, 2**31, *words[2:]]  # noqa: E731
    for content in (patched(16, u64(2**62)), patched(32, u64(2**62)), damaged(record)):
        tracemalloc.start()
        with pytest.raises(EngramFileError), opened(tmp_path, content) as table:
            list(table.entries())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


def test_what_is_not_a_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.engr"):
        with pytest.raises(EngramError, match="is not a file"):
            Engram.open(path)


@pytest.mark.parametrize("sound", [version_1(TRIGRAMS), version_2(BACK_OFF)])
def test_every_truncation_is_refused(tmp_path: Path, sound: bytes) -> None:
    for size in range(len(sound)):
        with pytest.raises(EngramFileError), opened(tmp_path, sound[:size]) as table:
            list(table.entries())


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sound=st.sampled_from([version_1(TRIGRAMS), version_2(BACK_OFF)]),
    edits=st.lists(
        st.tuples(
            st.integers(0, 700),
            st.sampled_from([0, 1, 4, 8]),
            st.one_of(
                st.binary(max_size=9),
                st.integers(0, 2**64 - 1).map(u64),
                st.sampled_from([0, 1, 2**31, 2**32 - 1]).map(lambda n: struct.pack("<I", n)),
                st.sampled_from([2**31, 2**63 - 1, 2**63]).map(u64),
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    cut=st.integers(0, 700),
)
def test_a_mutated_file_gives_a_typed_error_or_valid_entries(
    tmp_path: Path, sound: bytes, edits: list[tuple[int, int, bytes]], cut: int
) -> None:
    changed = sound
    for start, removed, inserted in edits:
        changed = changed[:start] + inserted + changed[start + removed :]
    for candidate in (changed, changed[:cut]):
        for read in (lambda table: list(table.entries()), looked_up):
            try:
                with opened(tmp_path, candidate) as table:
                    check(read(table), table.header)
            except EngramFileError as error:
                assert error.field


def looked_up(table: Engram) -> list[Entry]:
    found = [table.look_up(ngram) for ngram in BACK_OFF]
    return [entry for entry in found if entry is not None]


def check(entries: list[Entry], header: format.Header) -> None:
    for entry in entries:
        frequencies = [frequency for _, frequency in entry.followers]
        assert frequencies == sorted(frequencies, reverse=True)
        assert frequencies[-1] > 0
        if header.version == 2:
            assert header.shortest <= len(entry.ngram) <= header.longest
