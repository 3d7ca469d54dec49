"""MiniMax M3's calls: what their grammar allows, and values in elements that are nested deeply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heddle.extensions.call_forms.minimax_m3 import MiniMaxM3
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

FORM = MiniMaxM3()
NAMESPACE = "]<]minimax[>["
PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer", "maximum": 50},
    "kind": {"enum": ["low", "", 1, None]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "place": {
        "type": "object",
        "properties": {"x": {"type": "number"}, "next": {"$ref": "#/properties/place"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "either": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "number"}}]},
}
CLOSED: dict[str, Any] = {"properties": PROPERTIES, "additionalProperties": False}
CALLEES = [Callee("f", CLOSED | {"required": ["text"]}), Callee("g", CLOSED), Callee("h")]
NAMES = frozenset("fgh")


def call(name: str, elements: str) -> str:
    return f'@<invoke name="{name}">{elements}@</invoke>\n'


def said(*calls: str) -> str:
    return f"@<tool_call>\n{''.join(calls)}@</tool_call>".replace("@", NAMESPACE)


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_elements_follow_their_schemas(late: bool, controls: bool) -> None:
    tokenizer = LetterTokenizer(controls=controls)
    reading = Reading(FORM, NAMES)

    def refused(*calls: tuple[str, str], **how: Any) -> str | None:
        if late:
            text = calls_grammar(FORM, CALLEES, tokenizer.control_id, **how)
            grammar = Grammar(LARK, text, beginning=reading)
        else:
            grammar = Grammar.lark(answer_grammar(reading, CALLEES, tokenizer.control_id, **how))
        return refused_at(grammar, said(*(call(*one) for one in calls)), tokenizer)

    for allowed in (
        ("f", "@<text>a </text> <b>@</text>"),
        ("f", "@<text>@</text>@<count>7@</count>@<kind>low@</kind>"),
        *(("g", ""), ("g", "@<kind>@</kind>"), ("g", "@<kind>1@</kind>"), ("g", "@<tags>@</tags>")),
        ("g", "@<tags>@<item>a@</item>@<item>@</item>@</tags>"),
        ("g", "@<place>@<x>1@</x>@<next>@<x>-1.5@</x>@</next>@</place>"),
        *(("g", "@<either>true@</either>"), ("g", "@<either>@<item>1@</item>@</either>")),
        *(("h", ""), ("h", "@<a>1@</a>@<b>@<item>x@</item>@<item>@<c>@</c>@</item>@</b>")),
    ):
        assert refused(allowed) is None, allowed
    assert refused(("g", ""), ("h", "")) is None
    assert refused(("g", ""), ("h", ""), parallel=False) is not None
    for forbidden in (
        *(("f", ""), ("f", "@<count>7@</count>"), ("g", "@<other>1@</other>")),
        *(("g", "@<count>51@</count>"), ("g", "@<count>x@</count>"), ("g", "@<kind>2@</kind>")),
        *(("g", "@<tags>a@</tags>"), ("g", "@<tags>@<one>a@</one>@</tags>")),
        *(("g", "@<place>@</place>"), ("g", "@<place>@<x>1@</x>@<y>1@</y>@</place>")),
        *(("g", "@<either>1@</either>"), ("g", "@<count>7@</kind>")),
        *(("i", ""), ("h", "a")),
    ):
        assert refused(forbidden) is not None, forbidden
    assert refused() is not None


def read(elements: str, schema: Any) -> Any:
    answer = FORM.typed({"f": schema})
    reading = Reading(answer, NAMES)
    [found] = reading.read(said(call("f", elements))).calls
    return json.loads(found.arguments)


def test_choices_and_further_members_have_their_types() -> None:
    text = {"type": "string"}
    branch = {"type": "object", "properties": {"a": text}, "additionalProperties": text}
    schema = {"properties": {"one": {"anyOf": [{"type": "null"}, branch]}}}
    assert read("@<one>@<a>1@</a>@<b>2@</b>@</one>", schema) == {"one": {"a": "1", "b": "2"}}
    lists = {"oneOf": [{"type": "array", "items": text}, {"type": "null"}]}
    assert read("@<x>@<item>1@</item>@</x>@<y>2@</y>", {"additionalProperties": lists}) == {
        "x": ["1"],
        "y": 2,
    }


def test_an_object_may_have_a_member_item_and_a_list_elements_of_any_name() -> None:
    schema = {"properties": {"o": {"type": "object"}, "l": {"type": "array"}, "n": {}}}
    item, other = "@<item>1@</item>", "@<one>1@</one>"
    assert read(f"@<o>{item}@</o>@<l>{other}@</l>@<n>{item}@</n>", schema) == {
        "o": {"item": 1},
        "l": [1],
        "n": [1],
    }


def test_elements_that_are_nested_too_deeply_are_text() -> None:
    depth = 70
    found = read("@<a>" * depth + "1" + "@</a>" * depth, {})
    for _ in range(64):
        found = found["a"]
    assert isinstance(found, str)
