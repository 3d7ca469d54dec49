"""Calls in one list of JSON objects: what their grammars allow."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.json_list import Granite, Nemotron, ToolCalls
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
CALLEES = [Callee("f", {"properties": {"a": {"type": "number"}}, "additionalProperties": False})]
NAMES = frozenset("f")
CALL = '{"name": "f", "arguments": %s}'


def enforced(form: Any, **how: Any) -> Grammar:
    reading = Reading(form, NAMES)
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(form: Any, **how: Any) -> Grammar:
    text = calls_grammar(form, CALLEES, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, NAMES))


@pytest.mark.parametrize("form", [Nemotron(), ToolCalls(), Granite()], ids=repr)
@pytest.mark.parametrize("make", [enforced, late])
def test_a_list_of_calls_follows_its_functions(form: Any, make: Any) -> None:
    opening, closing = form.marks[0], "".join(form.marks[1:])

    def refused(*arguments: str, **how: Any) -> str | None:
        calls = ", ".join(CALL % one for one in arguments)
        return refused_at(make(form, **how), f"{opening}[{calls}]{closing}")

    assert refused('{"a": 1}') is None
    assert refused("{}", '{"a": 1}') is None
    assert refused("{}", "{}", parallel=False) is not None
    assert refused('{"b": 1}') is not None
    assert refused() is not None
