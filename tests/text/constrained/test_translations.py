"""Texts and regular expressions mean the same in every language that grammars are translated to."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fake_executor import tokens_of
from heddle.errors import GrammarError
from heddle.grammars import Grammar
from heddle.text.constrained.grammar import GrammarCompiler

if TYPE_CHECKING:
    from collections.abc import Callable


class Bytes:
    """A token per byte, one above its value; 0 ends a text."""

    vocabulary_size = 257
    bos_id = None
    eos_ids = frozenset({0})

    def token_bytes(self, token: int) -> bytes:
        return bytes([token - 1]) if token else b""

    def token_text(self, token: int) -> str:
        return chr(token - 1) if token else "<end>"

    def is_special(self, token: int) -> bool:
        return token == 0

    def control_id(self, text: str) -> int | None:
        return None

    def encode(self, text: str, **_: bool) -> list[int]:
        return [1 + byte for byte in text.encode()]


TOKENS = Bytes()
COMPILER = GrammarCompiler(TOKENS)
COUNT = 60


def accepts(grammar: Grammar, text: str) -> bool:
    state, seen = COMPILER.compile(grammar).begin(), list[int]()
    for token in [*TOKENS.encode(text), 0]:
        if token not in tokens_of(state.next_mask(seen)):
            return False
        seen = [token]
    return True


def tag(**form: Any) -> Grammar:
    return Grammar.of("structural_tag", {"type": "structural_tag", "format": form})


def gbnf_text(text: str) -> str:
    return '"' + "".join(f"\\U{ord(one):08x}" for one in text) + '"'


CHARACTERS = 'aA1é٣/\\\n"#- '
CLASSES = [r"[/\\]", "[^/]", r"[^\n]", r"[\/a-]", '["#]', r"[\d\n]", "[^\n]"]
ESCAPES = [r"\/", r"\n", "\\\n", r"\x2f", r"\d", r"\D", r"\w", r"\s", r"\"", r"\#", "."]
LITERALS = [re.escape(one) for one in CHARACTERS] + list('aA1é٣/\n"# -')
ATOMS = st.sampled_from([*CLASSES, *ESCAPES, *LITERALS])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = inner.map("(?:{})".format)
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(groups, st.sampled_from(["?", "*", "+", "{0,2}"])).map("".join)
        | st.tuples(inner, inner).map("|".join).map("(?:{})".format)
    )


PATTERNS = st.recursive(ATOMS, larger, max_leaves=6)


@given(PATTERNS, st.data())
@settings(deadline=None, max_examples=COUNT)
def test_a_regular_expression_matches_what_python_matches(
    pattern: str, data: st.DataObject
) -> None:
    matching = st.from_regex(pattern, fullmatch=True, alphabet=CHARACTERS)
    text = data.draw(matching | st.text(CHARACTERS, max_size=3))
    expected = re.fullmatch(pattern, text) is not None
    assert accepts(Grammar.of("regex", pattern), text) == expected
    assert accepts(tag(type="regex", pattern=pattern), text) == expected


@given(PATTERNS, st.data())
@settings(deadline=None, max_examples=COUNT)
def test_a_pattern_of_a_schema_matches_what_javascript_matches(
    pattern: str, data: st.DataObject
) -> None:
    matching = st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True, alphabet=CHARACTERS)
    text = data.draw(matching | st.text(CHARACTERS, max_size=3))
    expected = re.fullmatch(pattern, text, re.ASCII) is not None
    grammar = Grammar.json_schema({"type": "string", "pattern": f"^(?:{pattern})$"})
    assert accepts(grammar, json.dumps(text, ensure_ascii=False)) == expected


MAKERS: list[tuple[Callable[[str], Grammar], str]] = [
    (lambda text: Grammar.of("choice", [text, "other"]), "{}"),
    (lambda text: Grammar.of("regex", re.escape(text)), "{}"),
    (lambda text: tag(type="regex", pattern=re.escape(text)), "{}"),
    (lambda text: tag(type="const_string", value=text), "{}"),
    (lambda text: tag(type="tag", begin=text, content={"type": "any_text"}, end=text), "{0}{0}"),
    (
        lambda text: tag(
            type="triggered_tags",
            triggers=[text],
            tags=[{"begin": text, "content": {"type": "const_string", "value": "x"}, "end": text}],
        ),
        "{0}x{0}",
    ),
    (lambda text: Grammar.of("gbnf", f"root ::= {gbnf_text(text)}"), "{}"),
]


@given(st.sampled_from(MAKERS), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example(MAKERS[2], "a/b")
@example(MAKERS[4], "</a>\n")
@settings(deadline=None, max_examples=COUNT)
def test_a_text_stays_the_same(maker: tuple[Callable[[str], Grammar], str], text: str) -> None:
    make, form = maker
    grammar = make(text)
    assert accepts(grammar, form.format(text))
    assert not accepts(grammar, form.format(text)[:-1])


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=8)


@given(TEXTS, TEXTS)
@settings(deadline=None, max_examples=COUNT)
def test_names_and_values_of_a_schema_stay_the_same(name: str, value: str) -> None:
    schema = {"type": "object", "properties": {name: {"const": value}}, "required": [name]}
    grammar = Grammar.json_schema(schema | {"additionalProperties": False})
    assert accepts(grammar, json.dumps({name: value}, ensure_ascii=False))
    assert not accepts(grammar, json.dumps({name: value + "x"}, ensure_ascii=False))


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("pattern", "said"),
    [("ab\\", "ends with a backslash, got 'ab\\\\'"), ("(?ix)a # b\n c", "must be one line")],
)
def test_a_regular_expression_without_a_translation_is_refused(pattern: str, said: str) -> None:
    for grammar in (Grammar.of("regex", pattern), tag(type="regex", pattern=pattern)):
        with pytest.raises(GrammarError, match=re.escape(said)):
            COMPILER.compile(grammar)
