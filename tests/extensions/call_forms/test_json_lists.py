"""Calls in one list of JSON objects: what their grammars allow."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.granite import Granite
from heddle.extensions.call_forms.json_list import Nemotron, ToolCalls
from heddle.extensions.call_forms.phi4_mini import Phi4Mini
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


@pytest.mark.parametrize(
    "form", [Nemotron(), ToolCalls(), Granite(), Phi4Mini(), Phi4Mini(word=True)], ids=repr
)
@pytest.mark.parametrize("make", [enforced, late])
def test_a_list_of_calls_follows_its_functions(form: Any, make: Any) -> None:
    opening, closing = form.marks[0], "".join(form.marks[1:])
    if form == Phi4Mini(word=True) and make is enforced:
        opening, closing = "functools", ""

    def refused(*arguments: str, **how: Any) -> str | None:
        calls = ", ".join(CALL % one for one in arguments)
        return refused_at(make(form, **how), f"{opening}[{calls}]{closing}")

    assert refused('{"a": 1}') is None
    assert refused("{}", '{"a": 1}') is None
    assert refused("{}", "{}", parallel=False) is not None
    assert refused('{"b": 1}') is not None
    assert refused() is not None


def test_phi_takes_functions_in_the_system_message() -> None:
    form, asked = Phi4Mini(in_message=True), {"role": "user", "content": "Do it."}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    told = '[{"name": "f", "parameters": {}}]'
    system = {"role": "system", "content": "Be brief."}
    assert form.offered([system, asked], tools) == ([{**system, "tools": told}, asked], None)
    [first, second], others = form.offered([asked], tools)
    assert (first["role"], first["tools"], second, others) == ("system", told, asked, None)
    assert form.offered([asked], []) == ([asked], None)
    assert Phi4Mini().offered([asked], tools) == ([asked], tools)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Phi4Mini(), '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>'),
        (Phi4Mini(word=True), 'functools[{"name": "f", "arguments": {}}]'),
    ],
    ids=repr,
)
def test_phi_sees_earlier_calls_in_contents(form: Any, text: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    [message] = form.history([{"role": "assistant", "content": "So: ", "tool_calls": [call]}])
    assert message == {"role": "assistant", "content": f"So: {text}"}
