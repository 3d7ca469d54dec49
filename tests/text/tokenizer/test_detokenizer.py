"""Incremental decoding: whole characters, stop strings anywhere, and no needless delay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from vocabularies import byte_level, sentencepiece, tokenizer_of

from heddle.text.tokenizer.detokenizer import Detokenizer
from heddle.text.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from collections.abc import Sequence

# The pieces are the 256 bytes, in the order of the alphabet, and a few longer ones.
LONGER = ["Stop!", "xSTOPyST", "ab", "ba", "aab", "<stop>", "é好"]
TOKENIZER = tokenizer_of(
    byte_level((), dict.fromkeys(LONGER, TokenType.USER_DEFINED) | {"<s>": TokenType.CONTROL})
)
BYTE = {TOKENIZER.token_bytes(id): id for id in range(256)}


def tokens_of(*parts: str | bytes) -> list[int]:
    """The tokens of strings; each bytes object is one token."""
    return [
        id
        for part in parts
        for id in (
            TOKENIZER.encode(part) if isinstance(part, str) else [BYTE[bytes([b])] for b in part]
        )
    ]


def pushed(tokens: Sequence[int], *stop: str) -> tuple[list[str], Detokenizer]:
    detokenizer = Detokenizer(TOKENIZER, stop)
    return [detokenizer.push(token) for token in tokens], detokenizer


def cut_at_first_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the stop string that is complete first; of several, the longest."""
    for end in range(len(text) + 1):
        complete = [string for string in stop if text[:end].endswith(string)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@given(
    st.lists(st.integers(0, TOKENIZER.vocabulary_size - 1), max_size=40),
    st.lists(st.text("abSTop!é", min_size=1, max_size=5), max_size=4),
)
def test_pushes_and_flush_give_the_text_up_to_the_first_stop(
    tokens: list[int], stop: list[str]
) -> None:
    texts, detokenizer = pushed(tokens, *stop)
    text = b"".join(map(TOKENIZER.token_bytes, tokens)).decode(errors="replace")
    expected = cut_at_first_stop(text, stop)
    assert "".join(texts) + detokenizer.finish() == expected
    assert (detokenizer.stopped_by is not None) == (expected != text)


@given(
    st.lists(st.sampled_from([*"abc", "é", "ab", "ba", "aab", "好"]), max_size=30),
    st.lists(st.text("abcé", min_size=1, max_size=4), max_size=4),
)
@example(["a", "b", "c", "d"], ["abcd", "bc"])
@example(["a", "b", "a", "b", "c"], ["ababc", "babb"])
def test_only_the_longest_suffix_that_can_become_a_stop_is_held_back(
    parts: list[str], stop: list[str]
) -> None:
    text = "".join(parts)
    texts, detokenizer = pushed(tokens_of(text), *stop)
    sent = "".join(texts)
    if detokenizer.stopped_by is not None:
        assert sent == cut_at_first_stop(text, stop)
        return
    beginnings = {string[:length] for string in stop for length in range(len(string))} | {""}
    longest = max(len(beginning) for beginning in beginnings if text.endswith(beginning))
    assert sent == text[: len(text) - longest]
    assert detokenizer.finish() == text[len(text) - longest :]


def test_characters_are_returned_whole() -> None:
    texts, _ = pushed(tokens_of("好é".encode()))
    assert texts == ["", "", "好", "", "é"]


def test_a_broken_character_becomes_a_replacement_character() -> None:
    texts, detokenizer = pushed(tokens_of(b"\xe5\xa5a\xff"))
    assert texts == ["", "", "\ufffda", "\ufffd"]
    assert detokenizer.finish() == ""


def test_an_unfinished_character_at_the_end_becomes_a_replacement_character() -> None:
    texts, detokenizer = pushed(tokens_of(b"a\xe5\xa5"), "b")
    assert texts == ["a", "", ""]
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_without_stop_strings_nothing_is_held_back() -> None:
    texts, detokenizer = pushed(tokens_of(b"abc"))
    assert texts == ["a", "b", "c"]
    assert detokenizer.finish() == ""
    assert detokenizer.stopped_by is None


def test_only_text_that_can_become_a_stop_is_held_back() -> None:
    texts, detokenizer = pushed(tokens_of(b"word\nU\nUser"), "\nUser:")
    assert texts == ["w", "o", "r", "d", "", "", "\nU", "", "", "", ""]
    assert detokenizer.finish() == "\nUser"
    assert detokenizer.stopped_by is None


def test_a_stop_can_span_several_tokens() -> None:
    texts, detokenizer = pushed(tokens_of(b"hi END more"), "END")
    assert texts[:6] == ["h", "i", " ", "", "", ""]
    assert set(texts[6:]) == {""}
    assert detokenizer.stopped_by is not None
    assert detokenizer.finish() == ""


def test_a_stop_can_lie_inside_one_token() -> None:
    texts, detokenizer = pushed([256 + LONGER.index("xSTOPyST")], "STOP")
    assert texts == ["x"]
    assert detokenizer.stopped_by is not None
    assert detokenizer.finish() == ""


def test_a_stop_can_start_and_end_inside_tokens() -> None:
    texts, detokenizer = pushed(tokens_of("xSTOPyST", b"OPz"), "TOPz")
    assert texts == ["xSTOPyS", "", "", ""]
    assert detokenizer.stopped_by is not None


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two three", ("three", "two"), "one "),
        ("abcd", ("abcd", "bc"), "a"),  # "bc" is complete first
        ("abcd", ("cd", "bcd"), "a"),  # both are complete at once: the longer one
        ("aab", ("ab",), "a"),
        ("ababac", ("abac",), "ab"),
        ("xxabcd", ("xxabcq", "abz", "bcd"), "xxa"),  # "abc" starts no stop string, "bc" starts one
        ("stop", ("s",), ""),
        ("no", ("yes",), "no"),
    ],
)
def test_the_stop_string_that_is_complete_first_wins(
    text: str, stop: tuple[str, ...], expected: str
) -> None:
    texts, detokenizer = pushed(tokens_of(text.encode()), *stop)
    assert "".join(texts) + detokenizer.finish() == expected
    assert (detokenizer.stopped_by is not None) == (text != expected)


def test_an_incomplete_stop_is_returned_as_text() -> None:
    texts, detokenizer = pushed(tokens_of(b"ab"), "abc")
    assert texts == ["", ""]
    assert detokenizer.finish() == "ab"


def test_a_broken_tail_can_complete_a_stop() -> None:
    texts, detokenizer = pushed(tokens_of(b"x\xe5"), "\ufffd")
    assert texts == ["x", ""]
    assert detokenizer.finish() == ""
    assert detokenizer.stopped_by is not None


def test_special_tokens_add_no_text() -> None:
    texts, _ = pushed(tokens_of("a<s>b"))
    assert texts == ["a", "", "b"]


def test_generated_text_keeps_its_leading_space() -> None:
    tokenizer = tokenizer_of(sentencepiece({"▁a": -1.0, "▁": -2.0, "a": -3.0}))
    tokens = tokenizer.encode("a a")
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in tokens] == [" a", " a"]
    assert tokenizer.decode(tokens) == "a a"


def test_a_long_stop_string_costs_little_time() -> None:
    stop = "ab" * 5000 + "c"
    texts, detokenizer = pushed(tokens_of(("ab" * 5001 + "c").encode()), stop)
    assert "".join(texts) == "ab"
    assert detokenizer.stopped_by is not None


@given(
    st.lists(st.integers(0, 255), max_size=20),
    st.integers(0, 8),
    st.lists(st.text("ab!", min_size=1, max_size=2), min_size=1, max_size=3),
)
def test_stop_strings_are_ignored_before_min_tokens(
    tokens: list[int], min_tokens: int, stop: list[str]
) -> None:
    tokens = [BYTE[b"ab!."[token % 4 : token % 4 + 1]] for token in tokens]
    detokenizer = Detokenizer(TOKENIZER, tuple(stop), min_tokens)
    text = "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()
    first, rest = (TOKENIZER.decode(part) for part in (tokens[:min_tokens], tokens[min_tokens:]))
    assert text == first + cut_at_first_stop(rest, stop)
    assert (detokenizer.stopped_by is not None) == (cut_at_first_stop(rest, stop) != rest)
    found = detokenizer.stopped_by
    assert found is None or (found in stop and rest.startswith(found, len(text) - len(first)))


def test_control_tokens_are_text_when_requested() -> None:
    control = TOKENIZER.control_id("<s>")
    assert control is not None
    tokens = [*tokens_of("a"), control, *tokens_of("b")]
    hidden, shown = Detokenizer(TOKENIZER), Detokenizer(TOKENIZER, shown=[control])
    assert "".join(map(hidden.push, tokens)) == "ab"
    assert "".join(map(shown.push, tokens)) == "a<s>b"
    assert TOKENIZER.control_id("ab") is None
