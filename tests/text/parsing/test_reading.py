"""Reasoning and calls are found in text, in every form and for any cuts of the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.text.chat.call_forms import HERMES
from heddle.text.parsing import characters
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.parts import (
    Call,
    CallArguments,
    CallStart,
    ParsedAnswer,
    Part,
    Reasoning,
    Text,
    parsed_answer,
)
from heddle.text.parsing.reading import PLAIN, Reading

THINK = Marks("<think>", "</think>")
NAMES = frozenset({"f", "g"})
CASES: list[tuple[Any, str, ParsedAnswer]] = [
    (None, "<tool_call>", ParsedAnswer("<tool_call>")),
    # --- Hermes
    (HERMES, " plain text \n", ParsedAnswer(" plain text \n")),
    (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        ParsedAnswer(calls=(Call("f", '{"a": 1}'),)),
    ),
    (
        HERMES,
        'Well. \n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"b": []}, "name": "new"}</tool_call>\n',
        ParsedAnswer("Well.", calls=(Call("f", "{}"), Call("new", '{"b": []}'))),
    ),
    (  # marks and braces inside of strings
        HERMES,
        '<tool_call>{"name":"f","arguments":{"a":"}</tool_call>\\"{"}}</tool_call>!',
        ParsedAnswer("!", calls=(Call("f", '{"a":"}</tool_call>\\"{"}'),)),
    ),
    (  # several between one pair of marks; no arguments; arguments as a string; other members
        HERMES,
        '<tool_call>[{"name":"f"}, {"id": 3, "name":"g","arguments":"{\\"a\\":1}"}]</tool_call>',
        ParsedAnswer(calls=(Call("f", "{}"), Call("g", '{"a":1}'))),
    ),
    (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {}}\n{"name": "g", "arguments": null}\n',
        ParsedAnswer(calls=(Call("f", "{}"), Call("g", "{}"))),
    ),
    (  # a brace is missing; the end mark is missing
        HERMES,
        '<tool_call>{"name":"f","arguments":{"a":1}</tool_call> bye',
        ParsedAnswer(" bye", calls=(Call("f", '{"a":1}'),)),
    ),
    (HERMES, '<tool_call>{"name":"f","arguments":3}x', ParsedAnswer("x", calls=(Call("f", "3"),))),
    (HERMES, '<tool_call>{"name":"f","arg', ParsedAnswer(calls=(Call("f", ""),))),
    (HERMES, '<tool_call>{"name":"f","arguments":{"a', ParsedAnswer(calls=(Call("f", '{"a'),))),
    (  # the marks that small models of Qwen 2.5 write instead
        HERMES,
        'I will.\n```json\n{\n  "name": "f",\n  "arguments": {"a": 1}\n}\n```\nSo.',
        ParsedAnswer("I will.\nSo.", calls=(Call("f", '{"a": 1}'),)),
    ),
    (HERMES, '<tools>{"name": "g"}</tools>', ParsedAnswer(calls=(Call("g", "{}"),))),
    (HERMES, '{"name": "g", "arguments": {}}', ParsedAnswer(calls=(Call("g", "{}"),))),
    (HERMES, '<tool_call>{"name": "g"}\n```', ParsedAnswer(calls=(Call("g", "{}"),))),
    (HERMES, '```json\n{"name": "new"}\n```', ParsedAnswer('```json\n{"name": "new"}\n```')),
    (HERMES, '```json\n{"a": 1}\n```', ParsedAnswer('```json\n{"a": 1}\n```')),
    (HERMES, '{"name": "new", "arguments": {}}', ParsedAnswer('{"name": "new", "arguments": {}}')),
    # none at all
    (
        HERMES,
        'a <tool_call>{"x": 1}</tool_call> b',
        ParsedAnswer('a <tool_call>{"x": 1}</tool_call> b'),
    ),
    (HERMES, "<tool_call>{name}", ParsedAnswer("<tool_call>{name}")),
    (HERMES, '<tool_call>{"name": 3}', ParsedAnswer('<tool_call>{"name": 3}')),
    (HERMES, '<tool_call>{"name" "f"}', ParsedAnswer('<tool_call>{"name" "f"}')),
    (
        HERMES,
        '<tool_call><tool_call>{"name": "f"}</tool_call>',
        ParsedAnswer("<tool_call>", calls=(Call("f", "{}"),)),
    ),
    (HERMES, "a <tool_cal", ParsedAnswer("a <tool_cal")),
]


def parts_of(reading: Reading, *pieces: str) -> list[Part]:
    reader = reading.reader()
    return [part for piece in pieces for part in reader.feed(piece)] + reader.finish()


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_calls_are_found_in_every_form(form: Any, text: str, expected: ParsedAnswer) -> None:
    assert Reading(form, NAMES).read(text) == expected


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, "a <tool_cal", ParsedAnswer("a ")),
        (HERMES, "a <tool_cat", ParsedAnswer("a <tool_cat")),
        (HERMES, "a ``", ParsedAnswer("a ``")),  # this is rarely a call
        (HERMES, 'a<tool_call>\n{"na', ParsedAnswer("a")),
        (HERMES, '<tool_call>{"name": "f"', ParsedAnswer(calls=(Call("f", ""),))),
        (HERMES, '<tool_call>{"name": "f"}</tool', ParsedAnswer(calls=(Call("f", "{}"),))),
        (HERMES, "<tool_call> is", ParsedAnswer("<tool_call> is")),
        (HERMES, '```json\n{"name": "Bo', ParsedAnswer('```json\n{"name": "Bo')),
        (None, "<thin", ParsedAnswer()),
        (None, "<think>hm</thi", ParsedAnswer("", "hm")),
        (None, "<think>hm</think>a <tool_cal", ParsedAnswer("a <tool_cal", "hm")),
    ],
)
def test_a_truncated_answer_shows_no_partial_mark(
    form: Any, text: str, expected: ParsedAnswer
) -> None:
    """Clients cannot use half a mark."""
    reading = Reading(form, NAMES, THINK)
    assert reading.read(text, cut=True) == expected
    reader = reading.reader()
    parts = [part for char in text for part in reader.feed(char)] + reader.finish(cut=True)
    assert parsed_answer(parts) == expected


@pytest.mark.parametrize("form", [None, HERMES])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<think>\nhm\n</think>\n\nyes ", ParsedAnswer("yes ", "hm")),
        (" <think></think>yes", ParsedAnswer("yes")),
        ("<think> a <b> </think", ParsedAnswer("", "a <b> </think")),
        ("<thin", ParsedAnswer("<thin")),
        ("yes <think>no</think>", ParsedAnswer("yes <think>no</think>")),
        ("", ParsedAnswer()),
    ],
)
def test_reasoning_is_separated_from_text(form: Any, text: str, message: ParsedAnswer) -> None:
    assert Reading(form, NAMES, THINK).read(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hm\n</think>\n\nyes", ParsedAnswer("yes", "hm")),
        ("\n</think>yes", ParsedAnswer("yes")),
        ("hm", ParsedAnswer("", "hm")),
        ("<think>hm</think>yes", ParsedAnswer("yes", "<think>hm")),
    ],
)
def test_reasoning_opened_by_the_prompt_is_found(text: str, message: ParsedAnswer) -> None:
    assert Reading(None, marks=THINK, reasons=True).read(text) == message


def test_marks_in_reasoning_are_no_calls() -> None:
    text = '<think>I say <tool_call>{"name": "f"}</think><tool_call>{"name": "g"}</tool_call>'
    found = Reading(HERMES, NAMES, THINK).read(text)
    assert found == ParsedAnswer("", 'I say <tool_call>{"name": "f"}', (Call("g", "{}"),))


def test_deeply_nested_arguments_are_parsed() -> None:
    deep = "[" * 100_000
    for text in ('{"name": "f", "arguments": %s', '{"name": %s', '{"arguments": %s'):
        found = Reading(HERMES, NAMES).read("<tool_call>" + text % deep)
        assert deep in (found.calls[0].arguments if found.calls else found.text)


def test_parts_are_returned_as_soon_as_they_are_known() -> None:
    reader = Reading(HERMES, NAMES, THINK).reader()
    told = [
        ("<think>a", [Reasoning("a")]),
        (" </thi", []),
        ("nk", []),
        (">\n", []),
        ("b <", [Text("b")]),
        ("c", [Text(" <c")]),
        (' <tool_call>{"name": "f"', [CallStart(0, "f")]),
        (', "arguments": {"x": ', [CallArguments(0, '{"x": ')]),
        ('"y', [CallArguments(0, '"y')]),
        ('"}}</tool', [CallArguments(0, '"}')]),
    ]
    for piece, parts in told:
        assert reader.feed(piece) == parts
    assert reader.finish() == [Text("</tool")]


def test_plain_text_is_never_held_back() -> None:
    reader = PLAIN.reader()
    assert reader.feed("a <tool_call> ") == [Text("a <tool_call> ")]
    assert reader.feed("") == reader.finish() == []


PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[", "]"),
        *(
            "<|python_tag|>",
            '{"name": "f"',
            ', "arguments": ',
            '{"a": [1, "}"]}',
            "}",
            "{",
            ",",
            " ",
        ),
        *('"', "\\", ":", "f", "\n", "<", "null", ";", '{"name": "f", "parameters": {}}'),
    ]
)


@pytest.mark.parametrize("form", [None, HERMES])
@pytest.mark.parametrize("reasons", [False, True])
@given(pieces=st.lists(PIECES, max_size=14), data=st.data())
def test_parts_do_not_depend_on_how_the_text_is_cut(
    form: Any, reasons: bool, pieces: list[str], data: st.DataObject
) -> None:
    """Incomplete parts lose only marks, whitespace and members of calls."""
    reading, text = Reading(form, NAMES, THINK, reasons), "".join(pieces)
    expected = parts_of(reading, text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed_answer(parts_of(reading, *cut)) == parsed_answer(expected)
    assert parsed_answer(parts_of(reading, *text)) == parsed_answer(expected)
    if form is None and not reasons and not text.lstrip().startswith("<think>"):
        assert parsed_answer(expected) == ParsedAnswer(text)


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
    objects = ['{{"name": "{}", "arguments": {}}}'.format(*call) for call in written]
    tagged = "".join(f"<tool_call>\n{one}\n</tool_call>\n" for one in objects)
    assert Reading(HERMES, NAMES).read(tagged) == expected


def test_parsing_of_false_call_starts_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each start could be a call until the text ends, and contains all later starts."""
    monkeypatch.setattr(characters, "MOST_BACKTRACKED", 2_000)
    reads = 0
    original = characters.Characters.next

    def counted(source: characters.Characters) -> Any:
        nonlocal reads
        reads += 1
        return original(source)

    monkeypatch.setattr(characters.Characters, "next", counted)
    text = '```json{"arguments": {' * 300
    expected = parts_of(Reading(HERMES, NAMES), text)
    assert parsed_answer(expected) == ParsedAnswer(text)
    assert reads < 5 * len(text)
    assert parsed_answer(parts_of(Reading(HERMES, NAMES), *text)) == ParsedAnswer(text)
