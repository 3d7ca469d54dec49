"""Structural tags: text is free, and parts of it are constrained from their triggers on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fake_executor import END, tokens_of
from heddle.errors import GrammarError
from heddle.grammars import Grammar
from heddle.text.constrained.grammar import GrammarCompiler
from talking_model import LetterTokenizer

Json = dict[str, Any]

TOKENIZER = LetterTokenizer()
COMPILER = GrammarCompiler(TOKENIZER)
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CLOSED = NUMBER | {"additionalProperties": False}
OLDER: Json = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=one>", "schema": CLOSED, "end": "</f>"},
        {"begin": "<f=two>", "schema": {"type": "boolean"}, "end": "</f>"},
        {"begin": "[g]", "schema": {"enum": ["x"]}, "end": ""},
    ],
    "triggers": ["<f=", "[g"],
}
TEXTS = ["", "plain <f text", 'a <f=one>{"n": 3}</f> b <f=two>true</f>[g]"x" and more']
BROKEN = ["<f=", "<f=three>", '<f=one>{"m": 3}</f>', "<f=two>1</f>", "a [gx", '<f=one>{"n": 3}']


def newer(form: Json) -> Json:
    return {"type": "structural_tag", "format": form}


def tag(begin: str, content: Json, end: Any) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def text(value: str) -> Json:
    return {"type": "const_string", "value": value}


TRUE = {"type": "json_schema", "json_schema": {"type": "boolean"}}
FREE = {"type": "any_text"}
TRIGGERED = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [tag("<f=one>", TRUE, "</f>"), tag("<f=two>", FREE, ["</f>", "</g>"])],
}
LISTED = {"type": "tags_with_separator", "tags": [tag("(", TRUE, ")")], "separator": ","}
CASES: list[tuple[Json, list[str], list[str]]] = [
    (OLDER, TEXTS, BROKEN),
    (OLDER | {"at_least_one": True}, TEXTS[2:], [*TEXTS[:2], *BROKEN]),
    (newer(TRIGGERED), ["", "a<f=one>true</f>b", "<f=two>x<y</g>"], ["<f=", "<f=one>1</f>"]),
    (
        newer(TRIGGERED | {"stop_after_first": True, "at_least_one": True}),
        ["a<f=one>true</f>"],
        ["", "a", "<f=one>true</f>b"],
    ),
    (
        newer(TRIGGERED | {"stop_after_first": True}),
        ["a", "a<f=one>true</f>"],
        ["<f=one>true</f>b"],
    ),
    (newer(LISTED), ["", "(true)", "(true),(false)"], ["()", "(true)(true)", "(true),"]),
    (newer(LISTED | {"at_least_one": True, "stop_after_first": True}), ["(true)"], ["", "(1)"]),
    (
        newer({"type": "sequence", "elements": [tag("<think>", FREE, "</think>"), TRUE]}),
        ["<think>a<b</think>true", "<think></think>false"],
        ["true", "<think>a</think>", "<think>a</think>b"],
    ),
    (
        newer({"type": "or", "elements": [text("yes"), {"type": "regex", "pattern": "[0-9]+/x"}]}),
        ["yes", "12/x"],
        ["no", "12x", ""],
    ),
    (
        newer({"type": "sequence", "elements": [text("a"), FREE]}),
        ["a", "abc"],
        ["", "b"],
    ),
    (
        newer({"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}),
        ["x", "((x))"],
        ["(x", "y"],
    ),
    (newer({"type": "grammar", "grammar": 'start: "a" "b"*'}), ["a", "abb"], ["b"]),
    (newer({"type": "plus", "content": text("ab")}), ["ab", "abab"], ["", "aba"]),
    (newer({"type": "star", "content": text("ab")}), ["", "abab"], ["a"]),
    (newer({"type": "optional", "content": text("ab")}), ["", "ab"], ["abab"]),
]


def accepts(grammar: Grammar, said: str) -> bool:
    state, seen = COMPILER.compile(grammar).begin(), list[int]()
    for token in [*TOKENIZER.encode(said), END]:
        if token not in tokens_of(state.next_mask(seen)):
            return False
        seen = [token]
    return True


@pytest.mark.parametrize(("form", "matching", "others"), CASES)
def test_text_is_free_outside_of_tags(form: Json, matching: list[str], others: list[str]) -> None:
    grammar = Grammar.of("structural_tag", form)
    for said in matching:
        assert accepts(grammar, said), said
    for said in others:
        assert not accepts(grammar, said), said


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"type": "other"}, "of type 'structural_tag'"),
        ({"structures": [], "triggers": ["<"]}, "structures must be a list that is not empty"),
        (OLDER | {"triggers": ["<"]}, "tags[2].begin must start with exactly one trigger"),
        (OLDER | {"triggers": ["<", "<f", "["]}, "exactly one trigger, got '<f=one>'"),
        (OLDER | {"model": "llama"}, "the tag.model is not supported"),
        (newer({"type": "qwen_xml_parameter"}), "of type 'qwen_xml_parameter' is not supported"),
        (newer(TRIGGERED | {"excludes": ["x"]}), "format.excludes is not supported"),
        (newer(tag("a", TRIGGERED, "b")), "format.content has free text before other parts"),
        (newer({"type": "sequence", "elements": [FREE, TRUE]}), "free text before other parts"),
        (newer(tag("a", TRUE, None)), "format.end must be a string"),
        (newer(TRUE | {"style": "qwen_xml"}), "no style except 'json'"),
        (newer({"type": "json_schema", "json_schema": {"not": {}}}), "cannot be served"),
        (newer({"type": "grammar", "grammar": "root ::= x"}), "'x', which is not defined"),
    ],
)
def test_a_wrong_tag_says_what_is_wrong(form: Json, said: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(said)):
        COMPILER.compile(Grammar.of("structural_tag", form))


def test_a_tag_may_be_a_string_of_json() -> None:
    grammar = Grammar("structural_tag", json.dumps(OLDER))
    assert grammar == Grammar.of("structural_tag", OLDER)
    with pytest.raises(GrammarError, match="cannot be served"):
        COMPILER.compile(Grammar("structural_tag", "{"))
