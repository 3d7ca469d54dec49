"""Pictures of one sequence: keys, chunks and what a chunk reads."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fake_sight import ROW_TOKEN, lay, look_at
from heddle.pictures import Laid, Look, Picture, Pictures, Span
from heddle.state import FIRST_KEY

parts = st.lists(
    st.lists(st.integers(0, 31), min_size=1, max_size=6)
    | st.builds(look_at, st.integers(0, 3), st.integers(1, 9)),
    min_size=1,
    max_size=8,
)


@st.composite
def laid(draw: st.DrawFn, *, whole: bool | None = None) -> Laid:
    joined = draw(st.booleans()) if whole is None else whole
    return lay(*draw(parts), whole=joined, axes=draw(st.sampled_from([0, 3])))


@given(laid())
def test_a_token_of_a_picture_has_the_key_of_its_look(prompt: Laid) -> None:
    keys = prompt.pictures.keys(prompt.tokens)
    assert len(keys) == len(prompt.tokens)
    of_pictures = {at: s.look.key for s in prompt.pictures.spans for at in range(s.first, s.end)}
    for at, (key, token) in enumerate(zip(keys, prompt.tokens, strict=True)):
        assert key == of_pictures.get(at, token)
        assert (key >= FIRST_KEY) == (at in of_pictures)


@given(laid(whole=True), st.data())
def test_chunks_hold_pictures_whole(prompt: Laid, data: st.DataObject) -> None:
    pictures, end = prompt.pictures, len(prompt.tokens)
    start = 0
    while start < end:
        count = data.draw(st.integers(1, end - start))
        room = data.draw(st.integers(count, end))
        taken = pictures.cut(start, count, room)
        assert taken <= room
        if not taken:
            assert any(s.first <= start < s.end and s.end - start > room for s in pictures.spans)
            taken = pictures.cut(start, count, end)
        assert taken
        assert all(not s.first < start + taken < s.end for s in pictures.spans)
        start += taken


@given(laid(whole=False), st.integers(0, 20), st.integers(1, 20))
def test_other_chunks_may_end_anywhere(prompt: Laid, start: int, count: int) -> None:
    assert prompt.pictures.cut(start, count, count) == count


@given(laid())
def test_the_least_chunk_is_the_largest_picture_that_is_whole(prompt: Laid) -> None:
    counts = [span.count for span in prompt.pictures.spans]
    assert prompt.pictures.least_chunk == (max(counts, default=1) if prompt.pictures.whole else 1)


@given(laid(), st.integers(0, 12), st.data())
def test_what_chunks_read_is_what_the_whole_reads(
    prompt: Laid, output: int, data: st.DataObject
) -> None:
    pictures, end = prompt.pictures, len(prompt.tokens) + output
    rows, places, runs = read(pictures, 0, end)
    start = 0
    while start < end:
        count = pictures.cut(start, data.draw(st.integers(1, end - start)), end)
        part = slice(start, start + count)
        found_rows, found_places, found_runs = read(pictures, start, start + count)
        assert found_rows == {at: row for at, row in rows.items() if start <= at < start + count}
        assert np.array_equal(found_places, places[part])
        assert np.array_equal(found_runs, runs[part])
        start += count


def read(
    pictures: Pictures, start: int, end: int
) -> tuple[dict[int, list[float]], np.ndarray, np.ndarray]:
    """Rows by position, places and runs of a chunk; where there are none, those of a text."""
    positions = np.arange(start, end)
    places: np.ndarray = np.repeat(positions[:, None], 3, axis=1)
    runs: np.ndarray = np.stack([positions, positions + 1], axis=-1)
    sight = pictures.sight(start, end)
    rows: dict[int, list[float]] = {}
    if sight is not None:
        for first, values in sight.rows:
            rows |= {start + first + at: row.tolist() for at, row in enumerate(values)}
        if sight.places is not None:
            places = sight.places
        if sight.runs is not None:
            runs = sight.runs[:, 0]
    return rows, places, runs


@given(laid(), st.integers(1, 9))
def test_after_the_prompt_all_axes_go_on_together(prompt: Laid, output: int) -> None:
    pictures, end = prompt.pictures, len(prompt.tokens)
    sight = pictures.sight(end, end + output)
    if pictures.places is None:
        assert sight is None
        return
    assert sight is not None
    first = pictures.places.max() + 1
    assert np.array_equal(sight.places, first + np.repeat(np.arange(output)[:, None], 3, axis=1))
    assert not sight.rows
    assert sight.runs is None


@given(laid())
def test_each_token_of_a_whole_picture_sees_all_of_it(prompt: Laid) -> None:
    sight = prompt.pictures.sight(0, len(prompt.tokens))
    if not (prompt.pictures.whole and prompt.pictures.spans):
        assert sight is None or sight.runs is None
        return
    assert sight is not None
    assert sight.runs is not None
    ends = sight.runs[:, 0]
    assert all((one <= other).all() for one, other in pairwise(ends)), "in ascending order"
    for span in prompt.pictures.spans:
        assert (ends[span.first : span.end] == [span.first, span.end]).all()


def test_a_look_that_ended_before_is_not_wanted() -> None:
    first, second = look_at(1, 4, seen=False), look_at(2, 4, seen=False)
    pictures = lay([1, 2], first, [3], second).pictures
    assert pictures.wanted(0) == pictures.wanted(5) == [first, second]
    assert pictures.wanted(6) == [second]
    assert pictures.wanted(11) == []
    first.take(np.zeros((4, 2), np.float32))
    assert pictures.wanted(0) == [second]
    assert not first.scenes


def test_a_look_in_parts_gives_each_part_its_rows() -> None:
    look = look_at(1, 5)
    pictures = Pictures([Span(1, look, 0, 2), Span(4, look, 2, 3)])
    sight = pictures.sight(2, 6)
    assert sight is not None
    assert [(first, rows[:, 1].tolist()) for first, rows in sight.rows] == [(0, [1]), (2, [2, 3])]


def test_rows_are_arranged() -> None:
    look = Look(FIRST_KEY, 3, (), lambda rows: rows[::-1])
    look.take(np.arange(3, dtype=np.float32)[:, None])
    assert look.rows is not None
    assert look.rows.ravel().tolist() == [2, 1, 0]


def test_rows_of_another_number_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="2 rows of a picture of 3"):
        Look(FIRST_KEY, 3, ()).take(np.zeros((2, 1), np.float32))


def test_a_picture_has_the_digest_of_its_size_and_pixels() -> None:
    flat = np.zeros((2, 3, 3), np.uint8)
    picture = Picture.of(flat)
    assert picture.digest == Picture.of(flat.copy()).digest
    assert picture.digest != Picture.of(flat.reshape(3, 2, 3)).digest
    with pytest.raises(ValueError, match="read-only"):
        flat[0, 0, 0] = 1


def test_a_prompt_without_pictures_reads_nothing() -> None:
    prompt = lay([ROW_TOKEN, 3])
    assert prompt.pictures.sight(0, 2) is None
    assert prompt.pictures.keys(prompt.tokens) == [ROW_TOKEN, 3]
