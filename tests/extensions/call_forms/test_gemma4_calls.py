"""Gemma 4's calls: what their grammar allows, histories, and values that are nested deeply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heddle.extensions.call_forms.gemma4 import Gemma4
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

FORM = Gemma4()
OPENING, CLOSING, Q, _ = FORM.marks
PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer", "maximum": 50},
    "kind": {"enum": ["low", None]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "place": {
        "type": "object",
        "properties": {"x": {"type": "number"}, "next": {"$ref": "#/properties/place"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "either": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}}]},
}
CLOSED: dict[str, Any] = {"properties": PROPERTIES, "additionalProperties": False}
CALLEES = [Callee("f", CLOSED | {"required": ["text"]}), Callee("g", CLOSED), Callee("h")]
NAMES = frozenset("fgh")


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_arguments_follow_their_schemas(late: bool, controls: bool) -> None:
    tokenizer = LetterTokenizer(controls=controls)
    reading = Reading(FORM, NAMES)

    def refused(*calls: str, **how: Any) -> str | None:
        if late:
            text = calls_grammar(FORM, CALLEES, tokenizer.control_id, **how)
            grammar = Grammar(LARK, text, beginning=reading)
        else:
            grammar = Grammar.lark(answer_grammar(reading, CALLEES, tokenizer.control_id, **how))
        said = "".join(f"{OPENING}call:{call}{CLOSING}" for call in calls)
        return refused_at(grammar, said.replace("'", Q), tokenizer)

    for allowed in (
        *("f{text:'a {<'}", "f{count:7,kind:'low',text:''}", "f{kind:null,text:'a'}"),
        *("g{}", "g{count:7}", "g{tags:[]}", "g{tags:['a','b'],text:'a'}"),
        *("g{place:{x:1}}", "g{place:{next:{x:2},x:-1.5}}", "g{either:true}", "g{either:[null]}"),
        *("h{}", "h{a:1,b:['x',{c:null}],d:{}}"),
    ):
        assert refused(allowed) is None, allowed
    assert refused("g{}", "h{}") is None
    assert refused("g{}", "h{}", parallel=False) is not None
    for forbidden in (
        *("f{}", "f{count:7}", "f{text:3}", "f{kind:'mid',text:'a'}", "f{count:51,text:'a'}"),
        *("g{other:1}", "g{tags:[1]}", "g{place:{}}", "g{place:{x:1,y:2}}", "g{either:1}"),
        *("i{}", "g{count:7", "g{,count:7}"),
    ):
        assert refused(forbidden) is not None, forbidden
    assert late or refused() is not None


def test_values_inside_of_values_have_the_types_of_their_schemas() -> None:
    form = FORM.typed({"f": CLOSED})
    text = f"{OPENING}call:f{{place:{{x:{Q}1{Q},next:{{x:{Q}2{Q}}}}},tags:[1]}}{CLOSING}"
    [call] = Reading(form, NAMES).read(text).calls
    assert json.loads(call.arguments) == {"place": {"x": 1, "next": {"x": 2}}, "tags": ["1"]}


def test_a_value_that_is_nested_deeply_is_a_string_and_nothing_is_lost() -> None:
    deep = "[" * 5000 + "]" * 5000
    answer = Reading(FORM, NAMES).read(f"{OPENING}call:f{{a:{deep},b:1}}{CLOSING}")
    [call] = answer.calls
    assert call.arguments.count("[") == call.arguments.count("]") == 5000
    assert json.loads(call.arguments)["b"] == 1


def test_a_schema_that_would_make_a_large_grammar_allows_any_value_inside() -> None:
    names = [f"key{place}" for place in range(30)]
    part = {"type": "object", "properties": {name: {"$ref": "#"} for name in names}}
    grammar = calls_grammar(FORM, [Callee("f", part)], LetterTokenizer().control_id)
    assert len(grammar) < 500_000


def test_a_template_without_messages_of_tools_gets_results_beside_the_calls() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in "fg"]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [
        {"role": "tool", "tool_call_id": name, "content": content}
        for name, content in (("g", "1"), ("x", "2"))
    ]
    asked = {"role": "user", "content": "Do it."}
    responses = [{"name": "g", "response": "1"}, {"name": "unknown", "response": "2"}]
    written = Gemma4(knows_results=False).history([asked, said, *results, asked, results[0]])
    assert written == [asked, {**said, "tool_responses": responses}, asked, results[0]]
    assert FORM.history([said, *results]) == [said, *results]
