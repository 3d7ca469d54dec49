"""Philox against the vectors its authors publish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.extensions.reference.philox import philox4x32, uniform

# Random123 (D. E. Shaw Research), tests/kat_vectors, the lines `philox4x32 10`.
KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    assert philox4x32(words(counter), words(key)) == words(expected)


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**32 - 1))
def test_uniform_is_a_24_bit_fraction(seed: int, index: int) -> None:
    value = uniform(seed, index)
    assert 0 <= value < 1
    assert (value * 2**24).is_integer()


def test_uniform_uses_both_words_of_the_seed_and_the_index() -> None:
    draws = {uniform(seed, index) for seed in (0, 1, 2**32, 2**63) for index in range(4)}
    assert len(draws) == 16
    assert uniform(0, 0) == (0x6627E8D5 >> 8) / 2**24
    assert uniform(-1, 7) == uniform(2**64 - 1, 7)
