"""Mistral's calls: how they are read, what their grammars allow, and histories."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import templates
from heddle.extensions.call_forms.mistral import Mistral
from heddle.grammars import LARK, Grammar
from heddle.text.chat.template import ChatTemplate
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.parts import Call, ParsedAnswer, parsed_answer
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
THINK = Marks("<think>", "</think>")
CITY = {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CALLEES = [Callee("f", CITY | {"additionalProperties": False}), Callee("f2")]
LIST, NAMED, WITH_IDS = Mistral(), Mistral(named=True), Mistral(named=True, ids=True)
READING = Reading(LIST, frozenset({"f", "g"}))
ONE = {
    LIST: '[TOOL_CALLS][{"name": "%s", "arguments": %s}]',
    NAMED: "[TOOL_CALLS]%s[ARGS]%s",
    WITH_IDS: "[TOOL_CALLS]%s[CALL_ID]a1B2c3D4e[ARGS]%s",
}
TWO = {
    LIST: '[TOOL_CALLS][{"name": "%s", "arguments": %s}, {"name": "%s", "arguments": %s}]',
    NAMED: ONE[NAMED] * 2,
    WITH_IDS: ONE[WITH_IDS] * 2,
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def call(id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "So:", "tool_calls": [call("call_1", x=1), call("123456789")]},
    {"role": "tool", "content": "one", "tool_call_id": "call_1"},
    {"role": "tool", "content": "two", "tool_call_id": "123456789"},
    {"role": "assistant", "content": "Done."},
]


def enforced(form: Any, **how: Any) -> Grammar:
    reading = Reading(form, frozenset({"f", "f2"}))
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(form: Any, **how: Any) -> Grammar:
    text = calls_grammar(form, CALLEES, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, frozenset({"f", "f2"})))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'Sure[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name":"g","arguments":{}}]',
            ParsedAnswer("Sure", calls=(Call("f", '{"a": 1}'), Call("g", "{}"))),
        ),
        (
            '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}',
            ParsedAnswer(calls=(Call("f", '{"a": 1}'), Call("g", "{}"))),
        ),
        ("[TOOL_CALLS] what is\nthat", ParsedAnswer("[TOOL_CALLS] what is\nthat")),
        ("[TOOL_CALLS][ARGS]{}", ParsedAnswer("[TOOL_CALLS][ARGS]{}")),
        ("[TOOL_CALLS]", ParsedAnswer("[TOOL_CALLS]")),
    ],
)
def test_calls_are_found_in_every_form(text: str, expected: ParsedAnswer) -> None:
    assert READING.read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a[TOOL_CALLS]f[ARG", ParsedAnswer("a")),
        ('[TOOL_CALLS][{"name"', ParsedAnswer()),
        ("[TOOL_CALLS] what is\nthat", ParsedAnswer("[TOOL_CALLS] what is\nthat")),
    ],
)
def test_a_truncated_answer_shows_no_partial_mark(text: str, expected: ParsedAnswer) -> None:
    reading = Reading(LIST, frozenset({"f", "g"}), THINK)
    assert reading.read(text, cut=True) == expected
    reader = reading.reader()
    parts = [part for char in text for part in reader.feed(char)] + reader.finish(cut=True)
    assert parsed_answer(parts) == expected


PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]", '{"name": "f"'),
        *(', "arguments": ', '{"a": [1, "}"]}', "}", "{", ",", " ", '"', "\\", ":", "f", "\n", "<"),
        *("null", ";", '{"name": "f", "parameters": {}}'),
    ]
)


@pytest.mark.parametrize("reasons", [False, True])
@given(pieces=st.lists(PIECES, max_size=14), data=st.data())
def test_parts_do_not_depend_on_how_the_text_is_cut(
    reasons: bool, pieces: list[str], data: st.DataObject
) -> None:
    reading, text = Reading(LIST, frozenset({"f", "g"}), THINK, reasons), "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for pieces_of_text in (cut, text):
        reader = reading.reader()
        parts = [part for piece in pieces_of_text for part in reader.feed(piece)]
        assert parsed_answer(parts + reader.finish()) == reading.read(text)


ARGUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from("fg"), st.dictionaries(st.text(max_size=3), ARGUMENTS)),
        min_size=1,
        max_size=3,
    )
)
def test_parsed_calls_equal_the_written_calls(calls: list[tuple[str, dict[str, Any]]]) -> None:
    written = [(name, json.dumps(arguments)) for name, arguments in calls]
    expected = ParsedAnswer(calls=tuple(Call(name, arguments) for name, arguments in written))
    objects = ['{{"name": "{}", "arguments": {}}}'.format(*one) for one in written]
    assert READING.read(f"[TOOL_CALLS][{', '.join(objects)}]") == expected
    assert (
        READING.read("".join("[TOOL_CALLS]{}[ARGS]{}".format(*one) for one in written)) == expected
    )


@pytest.mark.parametrize("form", ONE, ids=repr)
@pytest.mark.parametrize("make", [enforced, late])
def test_calls_follow_their_functions(form: Any, make: Any) -> None:
    one = ONE[form]
    assert refused_at(make(form), one % ("f", '{"city": "Rome"}')) is None
    assert refused_at(make(form), one % ("f2", '{"any": [1, {}]}')) is None
    wrong = refused_at(make(form), one % ("f", '{"town": 1}'))
    assert wrong is not None
    assert wrong.endswith('{"')
    assert refused_at(make(form), one % ("f3", "{}")) is not None
    assert refused_at(make(form), one % ("f2", "[]")) is not None
    assert refused_at(make(form), one % ("f2", "{}") + " and more") is not None


@pytest.mark.parametrize("form", TWO, ids=repr)
@pytest.mark.parametrize("make", [enforced, late])
def test_a_form_allows_several_calls(form: Any, make: Any) -> None:
    text = TWO[form] % ("f2", "{}", "f", '{"city": "Rome"}')
    assert refused_at(make(form), text) is None
    refused = refused_at(make(form, parallel=False), text)
    assert refused is not None
    assert refused.startswith(ONE[form].removesuffix("]") % ("f2", "{}"))


@pytest.mark.parametrize("form", ONE, ids=repr)
def test_text_is_unconstrained_unless_a_call_is_enforced(form: Any) -> None:
    assert refused_at(enforced(form), "Hello.") == ""
    assert refused_at(late(form), "Hello. <b> [x] {") is None


@pytest.mark.parametrize("make", [enforced, late])
def test_ids_stand_where_the_model_was_trained_on_them(make: Any) -> None:
    in_list = '[TOOL_CALLS][{"name": "f2", "arguments": {}, "id": "%s"}]'
    assert refused_at(make(LIST), in_list % "a1B2c3D4e") is None
    assert refused_at(make(LIST), in_list % "a1B2") is not None
    assert refused_at(make(WITH_IDS), ONE[NAMED] % ("f2", "{}")) == "[TOOL_CALLS]f2"
    assert refused_at(make(NAMED), ONE[WITH_IDS] % ("f2", "{}")) == "[TOOL_CALLS]f2"


def test_mistral_gets_call_ids_of_nine_letters() -> None:
    template = ChatTemplate(templates.MISTRAL, "", "")
    messages, _ = template.dialect.conversation(HISTORY, TOOLS)
    first, second = (one["id"] for one in messages[1]["tool_calls"])
    assert len(first) == 9
    assert second == "123456789"
    assert [messages[2]["tool_call_id"], messages[3]["tool_call_id"]] == [first, second]
    assert [messages[2]["name"], messages[3]["name"]] == ["f", "f"]
    assert HISTORY[1]["tool_calls"][0]["id"] == "call_1", "what was given is as it was"
    assert template.render(messages, tools=TOOLS)


def test_a_template_that_refuses_text_beside_calls_gets_the_calls() -> None:
    refusing = templates.MISTRAL + "{# cannot have both content and tool calls #}"
    messages, _ = ChatTemplate(refusing, "", "").dialect.conversation(HISTORY, TOOLS)
    assert [one["content"] for one in messages] == ["Hi", "", "one", "two", "Done."]
    kept, _ = ChatTemplate(templates.MISTRAL, "", "").dialect.conversation(HISTORY, TOOLS)
    assert kept[1]["content"] == "So:"
