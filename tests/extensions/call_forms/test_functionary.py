"""Functionary's calls: what their grammars allow, and prompts that open an answer's text."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.functionary import Functionary, FunctionTags
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.parts import ParsedAnswer
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
CITY = {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CALLEES = [Callee("f", CITY | {"additionalProperties": False}), Callee("f2")]
NAMES = frozenset(("f", "f2"))
FORMS: dict[str, tuple[Any, str, str]] = {  # a call, and what stands between two
    "tags": (FunctionTags(), "<function=%s>%s</function>", ""),
    "recipients": (Functionary(), "%s\n%s", ">>>"),
}


def enforced(form: Any, **how: Any) -> Grammar:
    reading = Reading(form, NAMES)
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(form: Any, **how: Any) -> Grammar:
    text = calls_grammar(form, CALLEES, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, NAMES))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", [enforced, late])
def test_calls_follow_their_functions(name: str, make: Any) -> None:
    form, call, between = FORMS[name]

    def refused(*calls: str, **how: Any) -> str | None:
        return refused_at(make(form, **how), between.join(calls))

    assert refused(call % ("f", '{"city": "Rome"}')) is None
    assert refused(call % ("f2", '{"any": [1]}'), call % ("f2", "{}")) is None
    assert refused(call % ("f2", "{}"), call % ("f2", "{}"), parallel=False) is not None
    assert refused(call % ("f", '{"town": 1}')) is not None
    assert refused(call % ("f2", "{}") + "x") is not None
    if name == "tags" or make is enforced:  # else it is text
        assert refused(call % ("f2", "[]")) is not None
        assert refused(call % ("f3", "{}")) is not None


def test_an_answer_may_be_json_after_its_recipient() -> None:
    reading = Reading(Functionary(), NAMES)
    text = answer_grammar(reading, CALLEES, TOKENIZER.control_id, otherwise={"enum": [1]})
    assert refused_at(Grammar.lark(text), "all\n1") is None
    assert refused_at(Grammar.lark(text), "f2\n{}") is None
    assert refused_at(Grammar.lark(text), "1") == ""


@pytest.mark.parametrize(
    ("prompt", "opened", "with_text"),
    [
        ("<|end_header_id|>\n\n>>>", "", "all\n"),
        ("<|end_header_id|>\n\n>>>all\nSo", ">>>all\n", ""),
    ],
)
def test_a_prompt_may_open_the_text(prompt: str, opened: str, with_text: str) -> None:
    form = Functionary()
    assert form.opened(prompt) == opened
    assert form.text_opened(prompt) == prompt + with_text


def test_an_answer_without_functions_is_text() -> None:
    assert Reading(Functionary()).read("all\nHello.") == ParsedAnswer("Hello.")
    assert Reading(Functionary()).read("f\n{}") == ParsedAnswer("f\n{}")
    assert Reading(Functionary(), opened=">>>all\n").read("f\n{}") == ParsedAnswer("f\n{}")


def test_functions_without_a_description_get_an_empty_one() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    _, [told] = FunctionTags().offered([], [tool])  # type: ignore[misc]
    assert told["function"] == {"name": "f", "description": ""}
    assert FunctionTags().offered([], []) == ([], None)
