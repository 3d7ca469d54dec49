"""Building, merging and pruning engram tables, against counts in dictionaries."""

from __future__ import annotations

from collections import Counter as Counts
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engram_writer import FINGERPRINT, falling, fnv1a, version_1, version_2
from heddle._native import Engram as NativeEngram
from heddle.errors import EngramError
from heddle.extensions.engrams import build as building
from heddle.extensions.engrams import counting, format, writer
from heddle.extensions.engrams.build import Form, build
from heddle.extensions.engrams.format import Vocabulary
from heddle.extensions.engrams.grouping import Keep
from heddle.extensions.engrams.merge import merge
from heddle.extensions.engrams.texts import find_texts
from heddle.weights.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from engram_writer import Entries

SMALL = Vocabulary(128, FINGERPRINT)
LARGE = Vocabulary(70_000, FINGERPRINT)  # 17 bits a token, so 3 tokens a word
ALL = Keep()


class Characters:
    """A tokenizer whose tokens are characters."""

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        continues: bool = False,
    ) -> list[int]:
        assert not add_special
        assert not parse_special
        return [ord(character) for character in text]


def write_texts(folder: Path, contents: Iterable[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number:03}.txt").write_bytes(content.encode())
    return folder


def built(
    tmp_path: Path, contents: Sequence[str], form: Form, vocabulary: Vocabulary = SMALL
) -> bytes:
    folder = write_texts(tmp_path / "texts", contents)
    for left in sorted(folder.iterdir())[len(contents) :]:
        left.unlink()
    output = tmp_path / "out.engr"
    found = find_texts([str(folder)], print)
    made = build(output, found, Characters(), vocabulary, form, Silent())
    assert made.nbytes == output.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.engr", "texts"]
    return output.read_bytes()


def counted(contents: Iterable[str], orders: Iterable[int]) -> dict[tuple[int, ...], Counts[int]]:
    counts: dict[tuple[int, ...], Counts[int]] = {}
    for text in contents:
        tokens = list(map(ord, text))
        for order in orders:
            for place in range(order, len(tokens)):
                ngram = tuple(tokens[place - order : place])
                counts.setdefault(ngram, Counts())[tokens[place]] += 1
    return counts


def kept(counts: Entries, keep: Keep) -> dict[tuple[int, ...], Mapping[int, int]]:
    return {
        ngram: dict(falling(followers)[: keep.top])
        for ngram, followers in counts.items()
        if sum(followers.values()) >= keep.min_count
    }


def form_of(orders: range, keep: Keep = ALL, version: int = 2, memory: int = 1 << 20) -> Form:
    return Form(orders[-1], orders[0], keep, version, memory)


TEXTS = st.lists(st.text("abcd\n ", max_size=40), max_size=5)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    contents=TEXTS,
    shortest=st.integers(1, 3),
    more=st.integers(0, 3),
    min_count=st.integers(1, 3),
    top=st.sampled_from([None, 1, 2]),
    memory=st.sampled_from([130, 700, 3000, 1 << 20]),
    vocabulary=st.sampled_from([SMALL, LARGE]),
)
def test_a_table_has_the_counts_of_the_texts(
    tmp_path: Path, monkeypatch, contents, shortest, more, min_count, top, memory, vocabulary
) -> None:
    monkeypatch.setattr(building, "LEAST_MEMORY", 1)
    monkeypatch.setattr(counting, "FAN_IN", 3)
    orders, keep = range(shortest, shortest + more + 1), Keep(min_count, top)
    expected = kept(counted(contents, orders), keep)
    form = form_of(orders, keep, memory=memory)
    if not expected:
        with pytest.raises(EngramError, match=r"no n-grams|no text files"):
            built(tmp_path, contents, form, vocabulary)
        return
    found = built(tmp_path, contents, form, vocabulary)
    expected_bytes = bytearray(version_2(expected, vocabulary=vocabulary.size))
    expected_bytes[8:16] = bytes([orders[-1], 0, 0, 0, orders[0], 0, 0, 0])
    assert found == bytes(expected_bytes)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(contents=TEXTS, order=st.integers(1, 4), memory=st.sampled_from([700, 1 << 20]))
def test_version_1_has_the_counts_of_one_order(
    tmp_path: Path, monkeypatch, contents, order, memory
) -> None:
    monkeypatch.setattr(building, "LEAST_MEMORY", 1)
    if expected := counted(contents, [order]):
        form = form_of(range(order, order + 1), version=1, memory=memory)
        assert built(tmp_path, contents, form) == version_1(expected)


def test_the_memory_budget_does_not_change_the_table(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(building, "LEAST_MEMORY", 1)
    monkeypatch.setattr(counting, "FAN_IN", 8)
    runs = []
    write = counting.Counter._write_run
    monkeypatch.setattr(
        counting.Counter, "_write_run", lambda self, blocks: runs.append(1) or write(self, blocks)
    )
    contents = [
        f"line {number} of {number * 7 % 13} and {number % 5}\n" * 6 for number in range(60)
    ]
    tables, spills = set(), []
    for memory in (1 << 13, 1 << 15, 1 << 24):
        runs.clear()
        tables.add(built(tmp_path, contents, form_of(range(1, 5), memory=memory), LARGE))
        spills.append(len(runs))
    assert len(tables) == 1
    assert spills[0] > 2 * 8 * 4
    assert spills[0] > spills[1] > spills[2] == 4


def merged(tmp_path: Path, inputs: Sequence[bytes], weights=None, form=None) -> bytes:
    paths = [tmp_path / f"in-{number}.engr" for number in range(len(inputs))]
    for path, content in zip(paths, inputs, strict=True):
        path.write_bytes(content)
    form = form or Form(16, 1, ALL)
    merge(tmp_path / "out.engr", paths, weights or [1] * len(paths), form, Silent())
    return (tmp_path / "out.engr").read_bytes()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    contents=st.lists(st.text("abc", min_size=4, max_size=30), min_size=2, max_size=4),
    cut=st.integers(1, 3),
    first=st.integers(1, 2),
    keep=st.sampled_from([ALL, Keep(2, 1)]),
)
def test_a_merged_table_is_the_table_of_all_texts(
    tmp_path: Path, contents: list[str], cut: int, first: int, keep: Keep
) -> None:
    parts = counted(contents[:cut], range(first, 4)), counted(contents[cut:], [2, 3])
    tables = [version_2(part, vocabulary=128) for part in parts if part]
    expected: dict[tuple[int, ...], Counts[int]] = {}
    for part in parts:
        for ngram, followers in part.items():
            expected.setdefault(ngram, Counts()).update(followers)
    form = Form(16, 1, keep)
    left = kept(expected, keep)
    if left and min(map(len, left)) == min(map(len, expected)):
        found = merged(tmp_path, tables, form=form)
        assert found[:8] + found[16:] == (full := version_2(left, vocabulary=128))[:8] + full[16:]


def with_home(home: int, count: int) -> list[tuple[int]]:
    """N-grams whose home in a table of 16 slots is this one."""
    return [(token,) for token in range(200) if fnv1a((token,)) % 16 == home][:count]


@pytest.mark.parametrize("part", [1, 3, 1 << 20])
@pytest.mark.parametrize("home", [15, 2], ids=["table", "part"])
def test_entries_that_pass_the_end_of_a_part_or_table_stay(
    tmp_path: Path, monkeypatch, part: int, home: int
) -> None:
    """Those that pass the table's end begin it. Those of a part may fill several parts after it."""
    monkeypatch.setattr(writer, "_COPIES", 1)
    monkeypatch.setattr(building, "LEAST_MEMORY", 1)
    table = version_2({ngram: {1: 1} for ngram in (*with_home(home, 5), *with_home(0, 1))})
    form = Form(16, 1, ALL, memory=part * format.SLOT_BYTES)
    assert merged(tmp_path, [table], form=form) == table


def test_weights_multiply_frequencies(tmp_path: Path) -> None:
    tables = [version_2({(1,): {2: 9, 3: 2}}), version_2({(1,): {3: 4, 5: 1}, (2,): {1: 1}})]
    found = merged(tmp_path, tables, [0.5, 10])
    assert found == version_2({(1,): {2: 4, 3: 41, 5: 10}, (2,): {1: 10}})
    assert merged(tmp_path, tables[:1], [0.01]) == version_2({(1,): {2: 1, 3: 1}})
    largest = merged(tmp_path, tables[:1], [1e9])
    assert largest == version_2({(1,): {2: 2**32 - 1, 3: 2 * 10**9}})


def test_pruning_drops_rare_ngrams_rare_tokens_and_short_orders(tmp_path: Path) -> None:
    table = version_2({(1,): {2: 9}, (1, 2): {3: 2, 4: 2, 5: 3}, (2, 2): {1: 1}})
    form = Form(16, 2, Keep(2, 2))
    assert merged(tmp_path, [table], form=form) == version_2({(1, 2): {3: 2, 5: 3}})


@pytest.mark.parametrize(
    ("inputs", "weights", "says"),
    [
        ([version_1({(1,): {2: 3}})] * 2, None, "version 1, which stores neither n-grams"),
        (
            [version_2({(1,): {2: 3}}), version_2({(1,): {2: 3}}, fingerprint=bytes(32))],
            None,
            "different vocabularies",
        ),
        ([version_2({(1,): {2: 3}})] * 2, [1], "1 weight for 2 tables"),
        ([version_2({(1,): {2: 3}})], [0], "a weight of 0 is not above 0"),
        ([version_2({(1,): {2: 3}})], [float("nan")], "a weight of nan is not above 0"),
    ],
)
def test_tables_that_cannot_be_merged_are_refused(
    tmp_path: Path, inputs: list[bytes], weights: list[float] | None, says: str
) -> None:
    with pytest.raises(EngramError, match=says):
        merged(tmp_path, inputs, weights)
    assert not (tmp_path / "out.engr").exists()


def test_a_failed_merge_leaves_the_old_table_and_no_files(tmp_path: Path) -> None:
    (tmp_path / "out.engr").write_bytes(b"old")
    with pytest.raises(EngramError, match="no n-grams"):
        merged(tmp_path, [version_2({(1,): {2: 3}})], form=Form(16, 1, Keep(min_count=4)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in-0.engr", "out.engr"]
    assert (tmp_path / "out.engr").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"longest": 17}, "1 to 17 tokens"),
        ({"longest": 2, "shortest": 3}, "3 to 2 tokens"),
        ({"shortest": 0}, "0 to 3 tokens"),
        ({"version": 1}, "version 1 has n-grams of one length, not 1 to 3"),
        ({"memory": 1000}, "1,000 bytes is too small"),
    ],
)
def test_a_form_out_of_range_is_refused(arguments: dict[str, int], says: str) -> None:
    with pytest.raises(EngramError, match=says):
        Form(**arguments)


@pytest.mark.parametrize(
    ("name", "says"), [("absent/x.engr", "No such file or directory"), ("texts", "it is a folder")]
)
def test_a_table_needs_a_place(tmp_path: Path, name: str, says: str) -> None:
    found = find_texts([str(write_texts(tmp_path / "texts", ["abc"]))], print)
    with pytest.raises(EngramError, match=rf"cannot write .*{name}: {says}"):
        build(tmp_path / name, found, Characters(), SMALL, Form(), Silent())


def test_the_native_reader_finds_what_was_built(tmp_path: Path) -> None:
    contents = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog"]
    built(tmp_path, contents, form_of(range(1, 4)))
    counts = counted(contents, range(1, 4))
    with (tmp_path / "out.engr").open("rb") as file:
        table = NativeEngram(file.fileno(), SMALL.size)
    assert table.fingerprint == FINGERPRINT
    for ngram, followers in counts.items():
        total = sum(followers.values())
        expected = [(token, pytest.approx(often / total)) for token, often in falling(followers)]
        assert table.predict(list(ngram)) == expected
    assert table.predict(list(map(ord, "zz"))) == []


def test_a_damaged_text_is_refused_before_anything_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_texts(tmp_path / "texts", ["abc"] * 3)
    (folder / "9.txt").write_bytes(b"abc\xff")
    monkeypatch.setattr(building, "Counter", None)
    with pytest.raises(EngramError, match=r"9\.txt is not UTF-8 at byte 3"):
        build(
            tmp_path / "out.engr",
            find_texts([str(folder)], print),
            Characters(),
            SMALL,
            form_of(range(1, 3)),
            Silent(),
        )
