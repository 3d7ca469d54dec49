"""Look-up of what followed earlier, against a plain definition."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from heddle import _native

texts = st.lists(st.integers(0, 3), max_size=60)


def lookup(*pieces: list[int]) -> _native.Lookup:
    made = _native.Lookup()
    for piece in pieces:
        made.append(np.array(piece, np.int32))
    return made


def plain(text: list[int], most: int) -> tuple[list[int], int]:
    """The tokens after the longest earlier occurrence of the end; the newest among equals."""
    best, longest = -1, 1
    for end in range(2, len(text)):
        same = 0
        while same < min(end, 16) and text[end - 1 - same] == text[len(text) - 1 - same]:
            same += 1
        if same >= max(longest, 2):
            best, longest = end, same
    if best < 0:
        return [], 0
    after = text[best:]
    return [after[i % len(after)] for i in range(most)], longest


@given(texts, st.integers(1, 8))
def test_the_longest_and_then_the_newest_occurrence_counts(text: list[int], most: int) -> None:
    assert lookup(text).guess(most) == plain(text, most)


@given(texts, texts)
def test_pieces_make_no_difference(first: list[int], second: list[int]) -> None:
    whole, pieces = lookup(first + second), lookup(first, second)
    assert len(whole) == len(pieces) == len(first) + len(second)
    assert whole.guess(5) == pieces.guess(5)


def test_a_period_goes_on() -> None:
    assert lookup([1, 2, 3, 1, 2, 3, 1, 2]).guess(7) == ([3, 1, 2, 3, 1, 2, 3], 5)


def test_the_work_for_one_guess_is_bounded() -> None:
    """Only the newest occurrences are compared. A longer one before them does not count."""
    text = [1, 2, 3, 4, 5, 6, 7, 8] + [9, 6, 7] * 40 + [1, 2, 3, 4, 5, 6, 7]
    guesses, same = lookup(text).guess(1)
    assert (guesses, same) == ([1], 2)
