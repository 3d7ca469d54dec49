"""Patterns that cut any text in linear time are told from others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.text.tokenizer import pretokenizers
from heddle.text.tokenizer.linear import is_linear
from heddle.text.tokenizer.pretokenizers import PreTokenizer

SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "a+",
        r"'ll| ?\p{L}+|\p{N}{1,3}",
        r"[^\r\n\p{L}\p{N}]?+\p{L}+| ?[^\s\p{L}\p{N}]++[\r\n]*" + SPACES,
        "a" + SPACES,
        r"a|\s+",
        r"[\]a-]+b*c?",
        "a{2,}",
        "",
        "[[a]b]+",
        r" ?[^(\s|[.,!?])]+",
        r"[\p{Lu}&&[^\p{Han}]]+a?",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        r"(?:'s|'t|'re|'ve)| ?\p{L}+(?i:'s|'t)?" + SPACES,
    ],
)
def test_simple_alternatives_are_linear(pattern: str) -> None:
    assert is_linear(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:a|a)*[^a ]",
        "(a+)+b",
        "a+b",
        "a*a*b",
        "a{2,}b",
        "a{0,9}" * 3 + "b",  # 1,000 ways
        "|".join(["'ll"] * 100),  # each of 100 is tried at each place
        "a**",
        "a{1,3}+",  # the repetition of a repetition
        "a+?b",
        "(?=a*b)a",
        r"(a)\1",
        r"\X+",
        r"\s+$",
        r"\s*[\r\n]+",  # no alternative takes the spaces that it gives up
        r"\s*[\r\n]+|a|\s+",  # the one between may take a part of them
        SPACES + "|a+b",
        "[[[a]b]c]+",
        "[[]a]+",
        "(?:a|a)+b",
        "(?:a|ab){2}",
        "a+(?:b|c)",
        "(?:a|b)" * 9 + "c",
        r"\s*[\r\n]|\s",  # takes one space of a run, and then seeks the end of a line again
        "(",
        "a" * 5000,
    ],
)
def test_others_are_not(pattern: str) -> None:
    assert not is_linear(pattern)


@given(st.text(alphabet=" \t\r\n\xa0ab", max_size=30))
def test_a_faster_pattern_has_the_same_matches(text: str) -> None:
    slow, fast = (
        [word for word, _ in PreTokenizer((pattern,)).build().pre_tokenize_str(text)]
        for pattern in (r"\s+(?:$)", r"\s+$")
    )
    assert slow == fast


def test_all_patterns_with_names_are_linear_or_known_exceptions() -> None:
    known = pretokenizers.PRE_TOKENIZERS.values()
    patterns = {pattern for one in known for pattern in one.patterns}
    faster = pretokenizers._FASTER
    others = {pattern for pattern in patterns - faster.keys() if not is_linear(pattern)}
    # Where lower case ends a word, one alternative takes the run that another gives up.
    assert all(r"\p{Lu}\p{Lt}" in pattern for pattern in others)
