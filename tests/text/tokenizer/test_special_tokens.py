"""Cutting text at special tokens, compared with a direct version of llama.cpp's order."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import ModelFileError
from heddle.text.tokenizer import special as special_tokens
from heddle.text.tokenizer.special import SpecialTokens


def longest_first(ids: dict[str, int], text: str) -> list[str | int]:
    """For each token, longest first, cut every part of the text at its occurrences."""
    parts: list[str | int] = [text] if text else []
    for token in sorted(ids, key=len, reverse=True):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            rest = part
            while (at := rest.find(token)) >= 0:
                cut += [rest[:at], ids[token]] if at else [ids[token]]
                rest = rest[at + len(token) :]
            cut += [rest] if rest else []
        parts = cut
    return parts


# Tokens of different lengths: llama.cpp does not define the order of equal lengths.
@given(
    st.lists(st.text("ab", min_size=1, max_size=6), unique_by=len),
    st.lists(st.text("abx", max_size=20), max_size=10),
)
def test_special_token_splits_agree_with_llama_cpp(tokens: list[str], texts: list[str]) -> None:
    ids = {token: id for id, token in enumerate(tokens)}
    special = SpecialTokens(ids)
    for text in texts:
        assert special.split(text) == longest_first(ids, text)


def test_a_longer_token_wins_over_one_that_begins_before_it() -> None:
    special = SpecialTokens({"ab": 0, "bcd": 1})
    assert special.split("abcd") == ["a", 1]
    assert special.split("abc") == [0, "c"]


def test_a_longer_token_can_start_at_any_suffix_of_a_shorter_one() -> None:
    """Suffixes of `abc` start `bcz`, which does not match here, and `cdefg`."""
    special = SpecialTokens({"abc": 0, "bcz": 1, "cdefg": 2})
    assert special.split("abcdefg") == ["ab", 2]
    assert special.split("abcdef") == [0, "def"]


def test_the_longest_token_at_a_position_wins() -> None:
    for ids in ({"ab": 0, "bcd": 1, "bc": 2}, {"ab": 0, "bc": 2, "bcd": 1}):
        assert SpecialTokens(ids).split("abcd") == ["a", 1]


def test_token_length_is_counted_in_bytes() -> None:
    special = SpecialTokens({"abc": 0, "cé好": 1})
    assert special.split("abcé好") == ["ab", 1]


def test_runs_are_cut_into_the_longest_tokens_from_the_left() -> None:
    special = SpecialTokens({" " * n: n for n in range(2, 32)})
    assert special.split("a" + " " * 64 + "b c") == ["a", 31, 31, 2, "b c"]


def test_tokens_next_to_each_other_leave_no_empty_text() -> None:
    special = SpecialTokens({"<a>": 0, "<b>": 1})
    assert special.split("<a><b>x<a>") == [0, 1, "x", 0]
    assert special.split("") == []
    assert special.split("<a") == ["<a"]


def test_text_without_special_tokens_is_not_split() -> None:
    assert SpecialTokens({}).split("text") == ["text"]
    assert SpecialTokens({}).split("") == []


def test_memory_is_linear_in_the_characters_of_the_tokens() -> None:
    """Each token of the second half ends with the first letter of each in the first half.

    The last token repeats one letter, so all its suffixes are also its prefixes.
    """
    overlapping = [f"a{chr(0x4E00 + i)}x" for i in range(2_000)]
    overlapping += [f"{chr(0x4E00 + i)}a" for i in range(2_000)]
    tokens = [*overlapping, "b" * 1_000]
    tracemalloc.start()
    special = SpecialTokens({token: id for id, token in enumerate(tokens)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000 * sum(map(len, tokens))
    assert special.split(overlapping[0] + tokens[-1]) == [0, 4_000]


def test_special_tokens_with_too_many_characters_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(special_tokens, "_MOST_CHARACTERS", 10)
    SpecialTokens({"12345": 0, "67890": 1})
    with pytest.raises(ModelFileError, match="11 characters together"):
        SpecialTokens({"12345": 0, "678901": 1})


def test_many_first_characters_are_sought_at_once() -> None:
    ids = {chr(0x4E00 + i) + "x": i for i in range(1000)} | {"<a>": 1000, "]-": 1001}
    tokens = SpecialTokens(ids)
    assert tokens._start is not None
    assert "|" not in tokens._start.pattern
    assert tokens.split("<\u4e00x<a>\u4e01]-]") == ["<", 0, 1000, "\u4e01", 1001, "]"]


def test_a_very_long_token_is_refused() -> None:
    SpecialTokens({"a" * 1024: 0})
    with pytest.raises(ModelFileError, match="token has 1,025 characters; at most 1,024"):
        SpecialTokens({"a" * 1025: 0})
