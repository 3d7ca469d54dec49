r"""Cutting text into words, against the documented regular expressions worked out by hand.

Sources of the expectations: llama.cpp `src/llama-vocab.cpp`; GPT-2 `encoder.py`; the
`tokenizer.json` of Llama 3 and Qwen2.
"""

from __future__ import annotations

import pytest

from heddle.errors import UnsupportedModelError
from heddle.text.tokenizer.pretokenizers import pre_tokenizer


def words(name: str | None, text: str) -> list[str]:
    cut = pre_tokenizer(name).build().pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


CASES = {
    "gpt-2": {
        "Hello world": ["Hello", " world"],
        "I'm don't we'll 'Tis": ["I", "'m", " don", "'t", " we", "'ll", " '", "Tis"],
        "IT'S": ["IT", "'", "S"],
        "a  b   c": ["a", " ", " b", "  ", " c"],
        "a \n\n b": ["a", " \n\n", " b"],
        "end   ": ["end", "   "],
        "x=12345 67": ["x", "=", "12345", " 67"],
        "hi!!\n": ["hi", "!!", "\n"],
        "é中²½": ["é中", "²½"],
        "a\tb": ["a", "\t", "b"],
    },
    "smollm": {
        "x=12345 67": ["x", "=", "1", "2", "3", "4", "5", " ", "6", "7"],
        "I'm 2 IT'S": ["I", "'m", " ", "2", " IT", "'", "S"],
        "a  b   c": ["a", " ", " b", "  ", " c"],
        "a²½b": ["a", "²", "½", "b"],
    },
    "default": {
        "Hello, world!": ["Hello", ",", " world", "!"],
        "x=12345 67": ["x", "=", "123", "45", " ", "67"],
        "I'm 1,234,567": ["I", "'", "m", " ", "1", ",", "234", ",", "567"],
        "a  b\n\n": ["a", " ", " b", "\n\n"],
        "a+b<=c|d^e~f$": ["a", "+", "b", "<=", "c", "|", "d", "^", "e", "~", "f", "$"],
        "`x` ٣٣٣٣ 4444": ["`", "x", "`", " ", "٣٣٣٣", " ", "444", "4"],
    },
    "llama-bpe": {
        "Hello world": ["Hello", " world"],
        "I'M don'T we'lL": ["I", "'M", " don", "'T", " we", "'lL"],
        "we'lLx it'ſ": ["we", "'lL", "x", " it", "'ſ"],
        "x=12345 67": ["x", "=", "123", "45", " ", "67"],
        "(foo) bar.baz": ["(foo", ")", " bar", ".baz"],
        "end!!\n\n\nx": ["end", "!!\n\n\n", "x"],
        "a  b   c": ["a", " ", " b", "  ", " c"],
        "a \n\n b": ["a", " \n\n", " b"],
        "a\r\n\tb": ["a", "\r\n", "\tb"],
        "\n  x": ["\n", " ", " x"],
    },
    "qwen2": {
        "x=12345 67": ["x", "=", "1", "2", "3", "4", "5", " ", "6", "7"],
        "I'M 's": ["I", "'M", " '", "s"],
        "(foo) bar.baz": ["(foo", ")", " bar", ".baz"],
        "end!!\n\n\nx": ["end", "!!\n\n\n", "x"],
        "a \n\n b": ["a", " \n\n", " b"],
    },
    "gpt-4o": {
        "helloWorld HTTPServer's": ["hello", "World", " HTTPServer's"],
        "x=12345 we'lL": ["x", "=", "123", "45", " we'lL"],
        "a//\n\nb ÉTé": ["a", "//\n\n", "b", " ÉTé"],
    },
    "tekken": {
        "helloWorld HTTPServer's": ["hello", "World", " HTTPServer", "'s"],
        "x=12345 67": ["x", "=", "1", "2", "3", "4", "5", " ", "6", "7"],
        "éÉ中a ÀB": ["é", "É中a", " ÀB"],
    },
    "seed-coder": {
        "x=12 I'M": ["x", "=", "1", "2", " I", "'M"],
        "end!!\n\nx": ["end", "!!", "\n\n", "x"],
    },
    "qwen35": {
        "x=12 I'M": ["x", "=", "1", "2", " I", "'M"],
        "e\u0301a (a\u0301)!": ["e\u0301a", " (", "a\u0301", ")!"],
        "a \n\n b": ["a", " \n\n", " b"],
    },
    "kimi-k2": {
        "getUserName we'lL": ["get", "User", "Name", " we'lL"],
        "x=12345 a中文b": ["x", "=", "123", "45", " a", "中文", "b"],
        " 中文 Éé": [" ", "中文", " Éé"],
        "a//\n\nb": ["a", "//\n\n", "b"],
    },
    "deepseek-llm": {
        "x=12 34\n": ["x", "=", "1", "2", " ", "3", "4", "\n"],
        "Hello, world!": ["Hello", ",", " world", "!"],
        "中文abc üï": ["中文", "abc", " üï"],
        " ünï": [" ü", "n", "ï"],  # the third pattern cuts ASCII letters, too: ":-~" is a range
        "a \n\nb  ": ["a", " ", "\n", "\n", "b", "  "],
    },
    "deepseek-coder": {
        "x=12 34\n": ["x", "=", "1", "2", " ", "3", "4", "\n"],
        "f(a, b)": ["f", "(", "a", ",", " b", ")"],
        "中文abc": ["中文", "abc"],
    },
    "deepseek-v3": {
        "x=12345 67": ["x", "=", "123", "45", " ", "67"],
        "foo.bar (baz)!!\n\nx": ["foo", ".bar", " (", "baz", ")!!\n\n", "x"],
        "中文abc カナ": ["中文", "abc", " ", "カナ"],
        "a  b\u0301c": ["a", " ", " b\u0301c"],
    },
    "dbrx": {"x=12345 I'M": ["x", "=", "123", "45", " I", "'M"]},
    "refact": {"x=12 IT'S": ["x", "=", "1", "2", " IT", "'", "S"]},
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, cases in CASES.items() for text in cases]
)
def test_texts_are_split_into_the_documented_words(name: str, text: str) -> None:
    assert words(name, text) == CASES[name][text]


def test_a_file_without_a_pre_tokenizer_name_means_default() -> None:
    for absent in (None, ""):
        assert words(absent, "a1234") == ["a", "123", "4"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'viking'.*supported: default, gpt-2"):
        pre_tokenizer("viking")
