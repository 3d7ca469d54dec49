"""Llama 3's calls: how they are read, what their grammars allow, and histories."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import templates
from heddle.extensions.call_forms.llama import Llama
from heddle.grammars import LARK, Grammar
from heddle.text.chat.template import ChatTemplate
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.parts import Call, ParsedAnswer, Text, parsed_answer
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
FORM = Llama()
CITY = {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CALLEES = [Callee("f", CITY | {"additionalProperties": False}), Callee("f2")]
NAMES = frozenset({"f", "f2", "g"})
CALL = '<|python_tag|>{"name": "%s", "parameters": %s}'


def enforced() -> Grammar:
    return Grammar.lark(answer_grammar(Reading(FORM, NAMES), CALLEES, TOKENIZER.control_id))


def late() -> Grammar:
    text = calls_grammar(FORM, CALLEES, TOKENIZER.control_id)
    return Grammar(LARK, text, beginning=Reading(FORM, NAMES))


CASES: list[tuple[Any, str, ParsedAnswer]] = [
    (
        FORM,
        '{"name": "f", "parameters": {"a": [1]}}; {"name": "g", "parameters": {}}',
        ParsedAnswer(calls=(Call("f", '{"a": [1]}'), Call("g", "{}"))),
    ),
    (
        FORM,
        '\n<|python_tag|>{"type": "function", "name": "other", "parameters": {}}',
        ParsedAnswer(calls=(Call("other", "{}"),)),
    ),
    (
        FORM,
        '{"type": "function", "name": "f", "parameters": {}}',
        ParsedAnswer(calls=(Call("f", "{}"),)),
    ),
    (FORM, '{"name": "Bob", "age": 3} ', ParsedAnswer('{"name": "Bob", "age": 3} ')),
    (FORM, '{"age": 3, "name": "f"}', ParsedAnswer('{"age": 3, "name": "f"}')),
    (FORM, 'So: {"name": "f"}', ParsedAnswer('So: {"name": "f"}')),
    (FORM, "<|python_tag|>print(1)", ParsedAnswer("print(1)")),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_calls_are_found(form: Any, text: str, expected: ParsedAnswer) -> None:
    assert Reading(form, NAMES).read(text) == expected


def test_a_truncated_answer_shows_no_partial_mark() -> None:
    assert Reading(FORM, NAMES).read("<|python", cut=True) == ParsedAnswer()


def test_an_answer_in_json_is_returned_before_its_end() -> None:
    reader = Reading(FORM, NAMES).reader()
    assert reader.feed('{"city":') == [Text('{"city":')]


PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "<|python_tag|>", '{"name": "f"', ', "parameters": ', "}", "{"),
        *('{"a": [1, "}"]}', ",", " ", '"', "\\", ":", "f", "\n", "<", "null", ";", "[", "]"),
        '{"name": "f", "parameters": {}}',
    ]
)


@pytest.mark.parametrize("reasons", [False, True])
@given(pieces=st.lists(PIECES, max_size=14))
def test_parts_do_not_depend_on_how_the_text_is_cut(reasons: bool, pieces: list[str]) -> None:
    reading, text = Reading(FORM, NAMES, Marks("<think>", "</think>"), reasons), "".join(pieces)
    for cut in (pieces, text):
        reader = reading.reader()
        parts = [part for piece in cut for part in reader.feed(piece)] + reader.finish()
        assert parsed_answer(parts) == reading.read(text)


@given(
    st.lists(st.tuples(st.sampled_from("fg"), st.dictionaries(st.text(), st.text())), min_size=1)
)
def test_parsed_calls_equal_the_written_calls(calls: list[tuple[str, dict[str, str]]]) -> None:
    written = [(name, json.dumps(arguments)) for name, arguments in calls]
    objects = ['{{"name": "{}", "parameters": {}}}'.format(*call) for call in written]
    expected = ParsedAnswer(calls=tuple(Call(*call) for call in written))
    assert Reading(FORM, NAMES).read("; ".join(objects)) == expected


@pytest.mark.parametrize("make", [enforced, late])
def test_calls_follow_their_functions(make: Any) -> None:
    assert refused_at(make(), CALL % ("f", '{"city": "Rome"}')) is None
    assert refused_at(make(), CALL % ("f2", '{"any": [1, {}]}')) is None
    wrong = refused_at(make(), CALL % ("f", '{"town": 1}'))
    assert wrong is not None
    assert wrong.endswith('{"')
    assert refused_at(make(), CALL % ("f3", "{}")) is not None
    assert refused_at(make(), CALL % ("f2", "[]")) is not None
    assert refused_at(make(), CALL % ("f2", "{}") + " and more") is not None


def test_text_is_unconstrained_unless_a_call_is_enforced() -> None:
    assert refused_at(enforced(), "Hello.") == ""
    assert refused_at(late(), "Hello. <b> [x] {") is None


def test_a_call_without_a_mark_is_constrained_once_its_name_is_known() -> None:
    text = '{"name": "f", "parameters": {"%s": "Rome"}}'
    assert refused_at(late(), text % "city") is None
    assert refused_at(late(), text % "town") == '{"name": "f", "parameters": {"'
    assert refused_at(late(), '{"name": "Bob", "parameters": {"town": 1}}') is None


def test_a_late_grammar_that_the_output_already_violates_is_dropped() -> None:
    state = TOKENIZER.grammar(late()).begin()
    assert state.next_mask(TOKENIZER.encode('{"id": 7, "name": "f"')) == b""
    assert state.next_mask(TOKENIZER.encode("whatever")) == b""


def call(id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_llama_gets_one_call_in_each_message() -> None:
    template = ChatTemplate(templates.LLAMA, "", "")
    assert (template.dialect.form, template.dialect.knows_tools) == (FORM, True)
    assert not ChatTemplate(templates.LLAMA.replace("tools", "xs"), "", "").dialect.knows_tools
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "So:", "tool_calls": [call("1", x=1), call("2")]},
        {"role": "tool", "content": "one", "tool_call_id": "1"},
    ]
    messages, _ = template.dialect.conversation(history, [])
    assert [(m["content"], m.get("tool_calls")) for m in messages] == [
        ("Hi", None),
        ("So:", [call("1", x=1)]),
        ("", [call("2")]),
        ("one", None),
    ]
    assert template.render(messages).count('"parameters"') == 2
