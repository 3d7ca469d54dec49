"""Strings of sampling parameters as tokens: every way to produce a string."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import byte_level, sentencepiece, tokenizer_of

from heddle.engine.requests.request import token_rules
from heddle.sampling_params import SamplingParams
from heddle.text.tokenizer.sequences import MAX_TAIL_TOKENS, find_breakers
from heddle.text.tokenizer.vocabulary import TokenType
from heddle.token_rules import TokenSequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.text.tokenizer.tokenizer import Tokenizer

BYTE_LEVEL = tokenizer_of(byte_level(["Ġ f", "o o", "Ġf oo", "f oo"]))
PIECES = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bb", b"\xc3", b"\xa9", b"x\xc3"]
LETTERS = {"a": 1, "b": 2}


def encode(text: str) -> list[int]:
    """A token per letter."""
    return [LETTERS.get(letter, 0) for letter in text]


def pieces(tokenizer: Tokenizer, sequences: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[tokenizer.token_text(token) for token in sequence] for sequence in sequences]


@given(st.text("ab", min_size=1, max_size=4))
def test_breakers_cover_every_way_to_start_inside_a_token(string: str) -> None:
    wanted, expected = string.encode(), set()
    for token, piece in enumerate(PIECES):
        if wanted in piece:
            expected.add((token,))
            continue
        for cut in range(1, len(wanted)):
            if piece.endswith(wanted[:cut]):
                expected.add((token, *encode(string[cut:])))
    assert set(find_breakers(PIECES, encode, (string,)).sequences) == expected


def test_the_tail_of_a_breaker_is_bounded_and_begins_with_a_character() -> None:
    [*long] = find_breakers(PIECES, encode, ("b" + "a" * 40,)).sequences
    assert {len(sequence) for sequence in long} == {1 + MAX_TAIL_TOKENS}
    # "é" is C3 A9: its second byte alone is not text and cannot be encoded.
    assert find_breakers(PIECES, encode, ("é",)).sequences == ()
    assert find_breakers(PIECES, encode, ("xéa",)).sequences == ()


def test_breakers_of_several_strings_have_no_duplicates() -> None:
    sequences = find_breakers(PIECES, encode, ("a", "ab")).sequences
    assert len(set(sequences)) == len(sequences)
    assert {(1,), (3,), (4,), (5,), (1, 2), (4, 2)} == set(sequences)


def test_breakers_are_computed_once_for_the_same_strings() -> None:
    first = BYTE_LEVEL.breakers(("o",))
    assert isinstance(first, TokenSequences)
    assert BYTE_LEVEL.breakers(("o",)) is first
    assert BYTE_LEVEL.breakers(("f",)) is not first


def test_bad_words_are_spelled_with_and_without_a_space() -> None:
    assert pieces(BYTE_LEVEL, BYTE_LEVEL.spellings(("foo", " of"))) == [
        ["foo"],
        [" foo"],
        ["o", "f"],
        [" ", "o", "f"],
    ]


def test_bad_words_in_a_vocabulary_that_adds_a_leading_space() -> None:
    tokenizer = tokenizer_of(
        sentencepiece({"▁": -1, "f": -2, "o": -3, "▁f": -4, "fo": -5, "▁fo": -6})
    )
    assert pieces(tokenizer, tokenizer.spellings(("fo",))) == [["fo"], [" fo"]]


def test_a_continued_text_gets_no_leading_space() -> None:
    tokenizer = tokenizer_of(
        sentencepiece(
            {"▁": -1, "f": -2, "▁f": -3, "\n\n": -4}, {"<s>": TokenType.CONTROL}, bos_token_id=0
        )
    )
    plain = tokenizer.encode("f", add_special=False)
    assert pieces(tokenizer, [plain]) == [[" f"]]
    assert pieces(tokenizer, [tokenizer.encode("f", continues=True, add_special=False)]) == [["f"]]


@pytest.mark.parametrize(
    ("settings", "ends", "bad", "breakers"),
    [
        ({}, False, False, False),
        ({"min_tokens": 2}, True, False, False),
        ({"bad_words": ("foo",)}, False, True, False),
        ({"dry_multiplier": 0.5}, False, False, True),
        ({"dry_sequence_breakers": ("o",)}, False, False, False),
    ],
)
def test_rules_contain_only_requested_parts(
    settings: dict[str, object], ends: bool, bad: bool, breakers: bool
) -> None:
    metadata = byte_level(["o o"], {"</s>": TokenType.CONTROL}, eos_token_id=257)
    tokenizer = tokenizer_of(metadata)
    rules = token_rules(SamplingParams(**settings), tokenizer)  # type: ignore[arg-type]
    assert rules.end_tokens == ((257,) if ends else ())
    assert bool(rules.bad_sequences) == bad
    assert (rules.breakers is not None) == breakers


def test_end_tokens_are_forbidden_before_min_tokens() -> None:
    metadata = byte_level(["o o"], {"</s>": TokenType.CONTROL}, eos_token_id=257)
    tokenizer = tokenizer_of(metadata)
    params = SamplingParams(min_tokens=2, stop_token_ids=(7, 3, 257, 7))
    assert token_rules(params, tokenizer).end_tokens == (3, 7, 257)


def test_unused_tokens_are_forbidden_unless_a_bias_names_them() -> None:
    types = {"</s>": TokenType.CONTROL, "[PAD1]": TokenType.UNUSED, "[PAD2]": TokenType.UNUSED}
    tokenizer = tokenizer_of(byte_level(["o o"], types, eos_token_id=257))
    first, second = tokenizer.unused
    assert tokenizer.token_bytes(first) == b""
    assert token_rules(SamplingParams(), tokenizer).forbidden == (first, second)
    params = SamplingParams(logit_bias={first: 1.0, 3: -math.inf})
    assert token_rules(params, tokenizer).forbidden == (second, 3)
