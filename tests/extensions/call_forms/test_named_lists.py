"""Cohere's and Apertus's lists of calls: what their grammars allow, and arguments in histories."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.apertus import Apertus
from heddle.extensions.call_forms.cohere import Cohere
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
CALLEES = [Callee("f", {"properties": {"a": {"type": "number"}}, "additionalProperties": False})]
NAMES = frozenset("f")
FORMS: dict[str, tuple[Any, str]] = {
    "apertus": (Apertus(), '{"f": %s}'),
    "cohere": (Cohere(), '{"tool_call_id": "3", "tool_name": "f", "parameters": %s}'),
    "cohere without ids": (Cohere(), '{"tool_name": "f", "parameters": %s}'),
}


def enforced(form: Any, **how: Any) -> Grammar:
    reading = Reading(form, NAMES)
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(form: Any, **how: Any) -> Grammar:
    text = calls_grammar(form, CALLEES, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, NAMES))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", [enforced, late])
def test_a_list_of_calls_follows_its_functions(name: str, make: Any) -> None:
    form, call = FORMS[name]
    opening, closing = form.marks

    def refused(*arguments: str, **how: Any) -> str | None:
        calls = ", ".join(call % one for one in arguments)
        return refused_at(make(form, **how), f"{opening}[{calls}]{closing}")

    assert refused('{"a": 1}') is None
    assert refused("{}", '{"a": 1}') is None
    assert refused("{}", "{}", parallel=False) is not None
    assert refused('{"b": 1}') is not None
    assert refused() is not None
    text = f"{opening}[{(call % '{}').replace(chr(34) + 'f', chr(34) + 'g')}]{closing}"
    assert refused_at(make(form), text) is not None


def test_templates_of_apertus_take_arguments_as_objects_or_as_texts() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert Apertus().history([message]) == [message]
    [written] = Apertus(takes_texts=True).history([message])
    assert written["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
