"""The texts that grammars of tagged forms allow: names, keys, and values by the schema."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.glm import Glm
from heddle.extensions.call_forms.minicpm5 import MiniCpm5
from heddle.extensions.call_forms.minimax import MiniMax
from heddle.extensions.call_forms.seed_oss import SeedOss
from heddle.extensions.call_forms.solar_open2 import SolarOpen2
from heddle.extensions.call_forms.xml_function import XmlFunction
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
SCHEMA: dict[str, Any] = {
    "properties": {
        "text": {"type": "string"},
        "count": {"$ref": "#/$defs/count"},
        "kind": {"enum": ["low", "high"]},
    },
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "maximum": 50}},
}
CALLEES = [Callee("edit", SCHEMA, strict=True), Callee("clock")]
NAMES = frozenset(("edit", "clock"))

FORMS: dict[str, tuple[Any, str, str]] = {  # a call and a parameter
    "xml_function": (
        XmlFunction(),
        "<tool_call>\n<function=%s>\n%s</function>\n</tool_call>",
        "<parameter=%s>\n%s\n</parameter>\n",
    ),
    "seed_oss": (
        SeedOss(),
        "<seed:tool_call>\n<function=%s>\n%s</function>\n</seed:tool_call>",
        "<parameter=%s>%s</parameter>\n",
    ),
    "minimax": (
        MiniMax(),
        '<minimax:tool_call>\n<invoke name="%s">\n%s</invoke>\n</minimax:tool_call>',
        '<parameter name="%s">%s</parameter>\n',
    ),
    "glm": (
        Glm(),
        "<tool_call>%s\n%s</tool_call>",
        "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n",
    ),
    "minicpm5": (
        MiniCpm5(),
        '<function name="%s">%s</function>',
        '<param name="%s">%s</param>\n',
    ),
    "solar_open2": (
        SolarOpen2(),
        "<|tool_call:start|>%s\n%s<|tool_call:end|>",
        "<|tool_arg:start|>%s<|tool_arg:value|>%s<|tool_arg:end|>\n",
    ),
    "glm without newlines": (
        Glm(),
        "<tool_call>%s%s</tool_call>",
        "<arg_key>%s</arg_key><arg_value>%s</arg_value>",
    ),
}


def enforced(form: Any, callees: Any = CALLEES, **how: Any) -> Grammar:
    reading = Reading(form, NAMES)
    return Grammar.lark(answer_grammar(reading, callees, TOKENIZER.control_id, **how))


def late(form: Any, callees: Any = CALLEES, **how: Any) -> Grammar:
    text = calls_grammar(form, callees, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, NAMES))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", [enforced, late])
def test_values_follow_their_schemas(name: str, make: Any) -> None:
    form, call, parameter = FORMS[name]
    grammar = make(form)

    def refused(*parameters: tuple[str, str]) -> str | None:
        return refused_at(grammar, call % ("edit", "".join(parameter % one for one in parameters)))

    assert refused(("text", 'any <b> "text"\n'), ("count", "7"), ("kind", "low")) is None
    assert refused(("text", "7")) is None
    for place in (("count", "many"), ("count", "51"), ("kind", "mid"), ("other", "1")):
        found = refused(("text", "a"), place)
        assert found is not None
        assert place[1] not in found or place[0] == "kind"
    assert refused() is not None, "text is required"
    assert refused(("count", "7")) is not None


@pytest.mark.parametrize("name", FORMS)
def test_values_may_be_python_s_words_where_the_schema_has_such_values(name: str) -> None:
    form, call, parameter = FORMS[name]

    def allowed(schema: dict[str, Any]) -> list[str]:
        callee = Callee("edit", {"properties": {"a": schema}, "required": ["a"]})
        grammar = enforced(form, [callee])
        words = ("True", "true", "False", "None", "null")
        return [w for w in words if not refused_at(grammar, call % ("edit", parameter % ("a", w)))]

    assert allowed({"type": "boolean"}) == ["True", "true", "False"]
    assert allowed({"type": ["boolean", "null"]}) == ["True", "true", "False", "None", "null"]
    assert allowed({"enum": [True, 3]}) == ["True", "true"]
    assert allowed({"enum": [1, 0]}) == []
    assert allowed({"type": "number"}) == []


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", [enforced, late])
def test_a_function_without_a_strict_schema_has_any_parameters(name: str, make: Any) -> None:
    form, call, parameter = FORMS[name]
    grammar = make(form)
    assert refused_at(grammar, call % ("clock", "")) is None
    assert refused_at(grammar, call % ("clock", parameter % ("any", "1") * 2)) is None
    assert refused_at(grammar, call % ("clocks", "")) is not None
    assert refused_at(grammar, call % ("clock", "") + " and more") is not None


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", [enforced, late])
def test_several_calls_are_allowed_unless_a_request_forbids_them(name: str, make: Any) -> None:
    form, call, _ = FORMS[name]
    two = f"{call % ('clock', '')}\n{call % ('clock', '')}"
    if form.shares_tags:
        two = two.replace(f"{form.closing_tag}\n{form.opening_tag}\n", "")
    assert refused_at(make(form), two) is None
    assert refused_at(make(form, parallel=False), two) is not None


@pytest.mark.parametrize("name", FORMS)
def test_text_is_free_unless_a_call_is_enforced(name: str) -> None:
    form, _, _ = FORMS[name]
    assert refused_at(enforced(form), "Hello.") == ""
    assert refused_at(late(form), "Hello. <b> {") is None


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "number"}}},
        {"properties": {"a": True, "b": {"const": "x"}, "c": {"type": ["string", "null"]}}},
        {
            "$ref": "#/$defs/self",
            "$defs": {"self": {"properties": {"a": {"$ref": "#/$defs/self"}}}},
        },
        {"allOf": [{"properties": {"a": {}}}], "required": ["b"]},
        {"properties": {'<">': {"type": "number"}}, "required": 3},
    ],
)
def test_every_schema_has_a_grammar(name: str, schema: dict[str, Any]) -> None:
    form, call, parameter = FORMS[name]
    grammar = enforced(form, [Callee("f", schema)])
    filled = parameter % ("b", "x") if "allOf" in schema else ""
    assert refused_at(grammar, call % ("f", filled)) is None


def test_a_value_of_minicpm_may_stand_in_cdata() -> None:
    form, call, parameter = FORMS["minicpm5"]
    for make in (enforced, late):
        text = call % ("edit", parameter % ("text", "<![CDATA[a </param> & b]]>"))
        assert refused_at(make(form), text) is None
        text = call % ("edit", parameter % ("text", "a </param> & b"))
        assert refused_at(make(form), text) is not None
