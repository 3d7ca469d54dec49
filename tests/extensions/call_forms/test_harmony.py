"""Harmony, the form of gpt-oss: its answers in any pieces, its prompts, and malformed answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import templates
from heddle.extensions.call_forms.harmony import REASONING, Harmony
from heddle.text.chat.template import ChatTemplate
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
from heddle.text.parsing.reading import Reading

FORM = Harmony()
NAMES = frozenset({"f", "get_weather"})
READING = Reading(FORM, NAMES, REASONING)
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def template() -> ChatTemplate:
    return ChatTemplate(templates.HARMONY, "", "<|return|>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FINAL + "yes <|return|>", ParsedAnswer("yes ")),
        (THOUGHT + FINAL + "yes", ParsedAnswer("yes", "hm")),
        (THOUGHT + FINAL + "yes<|end|>", ParsedAnswer("yes", "hm")),
        (THOUGHT + THOUGHT + FINAL + "yes", ParsedAnswer("yes", "hm\nhm")),
        (THOUGHT + CALL + '{"a": 1}<|call|>', ParsedAnswer("", "hm", (Call("f", '{"a": 1}'),))),
        (CALL + '{"a": 1}', ParsedAnswer(calls=(Call("f", '{"a": 1}'),))),
        (CALL + " ", ParsedAnswer(calls=(Call("f", "{}"),))),
        (CALL + "<|call|>", ParsedAnswer(calls=(Call("f", "{}"),))),
        (  # a preamble is text; the recipient may come before the channel; an unknown function
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
            " to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
            ParsedAnswer("I look.", calls=(Call("g", "{}"),)),
        ),
        (  # several calls, as ignore_eos shows them
            f"{CALL}{{}}<|call|><|start|>assistant{CALL}[]<|call|>",
            ParsedAnswer(calls=(Call("f", "{}"), Call("f", "[]"))),
        ),
        (  # the channel before and after the recipient, which the grammar of calls allows
            "<|channel|>commentary to=functions.f<|channel|>commentary json<|message|>{}",
            ParsedAnswer(calls=(Call("f", "{}"),)),
        ),
        (  # calls in other channels, without a type or a space
            "<|channel|>analysis to=functions.get_weather code<|message|>{}",
            ParsedAnswer(calls=(Call("get_weather", "{}"),)),
        ),
        (
            "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}",
            ParsedAnswer(calls=(Call("f", "{}"),)),
        ),
        ("<|channel|>final <|constrain|>json<|message|>{}", ParsedAnswer("{}")),
        ("<|channel|>analysis to=browser.open<|message|>{}", ParsedAnswer("", "{}")),
        (  # two messages of text
            f"<|channel|>commentary<|message|>a<|end|><|start|>assistant{FINAL}b",
            ParsedAnswer("a\nb"),
        ),
        # marks are missing
        ("<|channel|>analysis<|message|>hm" + FINAL + "yes", ParsedAnswer("yes", "hm")),
        ("<|channel|>analysis<|message|>hm<|start|>assistant" + FINAL, ParsedAnswer("", "hm")),
        ("<|channel|>analysis<|end|><|start|>assistant" + FINAL + "yes", ParsedAnswer("yes")),
        ("yes <|return|>", ParsedAnswer("yes <|return|>")),
        ("<|channel|>analysis", ParsedAnswer("<|channel|>analysis")),
        ("<|message|>yes", ParsedAnswer("<|message|>yes")),
        # marks that a text quotes
        (FINAL + "<|channel|> and <|end|> mark", ParsedAnswer("<|channel|> and <|end|> mark")),
        (FINAL + "a<|start|>user<|message|>b", ParsedAnswer("a<|start|>user<|message|>b")),
        (CALL + '"<|end|>"<|call|>', ParsedAnswer(calls=(Call("f", '"<|end|>"'),))),
        ("", ParsedAnswer()),
    ],
)
def test_the_messages_of_an_answer_are_found(text: str, expected: ParsedAnswer) -> None:
    assert READING.read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>anal", ParsedAnswer()),
        (THOUGHT + "<|channel|>fin", ParsedAnswer("", "hm")),
        (THOUGHT + FINAL + "yes<|e", ParsedAnswer("yes", "hm")),
        (THOUGHT + "<|channel|>commentary to=functions.f", ParsedAnswer("", "hm")),
        (CALL, ParsedAnswer(calls=(Call("f", ""),))),
        (CALL + '{"a', ParsedAnswer(calls=(Call("f", '{"a'),))),
    ],
)
def test_a_truncated_answer_shows_no_partial_header(text: str, expected: ParsedAnswer) -> None:
    reader = READING.reader()
    parts = [part for char in text for part in reader.feed(char)] + reader.finish(cut=True)
    assert parsed_answer(parts) == READING.read(text, cut=True) == expected


def test_a_request_without_functions_has_no_calls() -> None:
    text = f"{THOUGHT}{CALL}{{}}<|call|>"
    assert Reading(FORM, marks=REASONING).read(text) == ParsedAnswer("{}", "hm")


def test_parts_are_returned_as_soon_as_they_are_known() -> None:
    reader = READING.reader()
    told: list[tuple[str, list[Part]]] = [
        ("<|channel|>", []),
        ("analysis<|message|>", []),
        ("Hm ", [Reasoning("Hm")]),
        ("so.", [Reasoning(" so.")]),
        ("<|end|>", []),
        ("<|start|>assistant<|channel|>commentary to=functions.", []),
        ("f <|constrain|>json<|message|>", [CallStart(0, "f")]),
        ('{"a"', [CallArguments(0, '{"a"')]),
        (": 1}", [CallArguments(0, ": 1}")]),
    ]
    for piece, parts in told:
        assert reader.feed(piece) == parts
    assert reader.finish() == []
    assert READING.reader().feed("Hello") == [Text("Hello")]


PIECES = st.sampled_from(
    [
        *FORM.marks,
        *("assistant", "analysis", "final", "commentary", " to=functions.", "f", " ", "json"),
        *(THOUGHT, FINAL, CALL, "<|start|>assistant", '{"a": "<|end|>"}', "<|", "\n", "yes"),
    ]
)


@pytest.mark.parametrize("opened", ["", FINAL, REASONING.opening])
@given(pieces=st.lists(PIECES, max_size=12), cut=st.booleans(), data=st.data())
def test_parts_do_not_depend_on_how_the_text_is_cut(
    opened: str, pieces: list[str], cut: bool, data: st.DataObject
) -> None:
    reading, text = Reading(FORM, NAMES, REASONING, opened=opened), "".join(pieces)
    expected = reading.read(text, cut=cut)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    ends = zip([0, *places], [*places, len(text)], strict=True)
    for cuts in ([text[a:b] for a, b in ends], list(text)):
        reader = reading.reader()
        parts = [part for piece in cuts for part in reader.feed(piece)] + reader.finish(cut=cut)
        assert parsed_answer(parts) == expected


@given(text=st.text(alphabet="<|>a \n{}", max_size=20))
def test_text_without_marks_stays_text(text: str) -> None:
    assert READING.read(text) == ParsedAnswer(text)
    assert READING.read(FINAL + text) == ParsedAnswer(text)


# --- prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "header"),
    [
        ("<|start|>user<|message|>hi<|end|><|start|>assistant", ""),
        ("<|start|>user<|message|>hi<|end|>", ""),
        ("<|start|>assistant<|channel|>final<|message|>a<|end|>", ""),
        ("<|start|>assistant<|channel|>final<|message|>So", FINAL),
        ("<|start|>assistant<|channel|>analysis<|message|>", REASONING.opening),
    ],
)
def test_the_prompt_can_open_a_message(prompt: str, header: str) -> None:
    assert FORM.opened(prompt) == header
    dialect = template().dialect
    assert dialect.form == FORM
    reading = dialect.reading(prompt, {name: {} for name in NAMES})
    assert (reading.opened, reading.reasons) == (header, header == REASONING.opening)
    assert (reading.marks is None) == (header == FINAL)
    assert dialect.form.text_opened(prompt) == (prompt if header else prompt + FINAL)


def test_an_answer_goes_on_in_the_message_that_the_prompt_opens() -> None:
    dialect = template().dialect
    final = dialect.reading("<|start|>assistant<|channel|>final<|message|>So")
    assert final.read(" it is.") == ParsedAnswer(" it is.")
    thinking = dialect.reading("<|start|>assistant<|channel|>analysis<|message|>")
    assert thinking.read(f"hm<|end|><|start|>assistant{FINAL}a") == ParsedAnswer("a", "hm")


def call(id: str, name: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": {"x": 1}}}


def rendered(messages: list[dict[str, Any]]) -> str:
    written, _ = template().dialect.conversation(messages, [])
    return template().render(written).partition("<|start|>user")[2]


def test_each_result_follows_its_call() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Two.",
            "tool_calls": [call("1", "f"), call("2", "g")],
        },
        {"role": "tool", "content": "two", "tool_call_id": "2"},
        {"role": "tool", "content": "one", "tool_call_id": "1"},
    ]
    assert rendered(messages) == (
        "<|message|>Hi<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Two.\n\nI look.<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"one"<|end|>'
        '<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        '<|start|>functions.g to=assistant<|channel|>commentary<|message|>"two"<|end|>'
        "<|start|>assistant"
    )
    assert "reasoning_content" in messages[1], "the given messages are unchanged"


def test_reasoning_is_given_to_the_template_as_thinking() -> None:
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert FORM.history([said]) == [{"role": "assistant", "content": "Yes.", "thinking": "Hm."}]


def test_all_system_messages_reach_the_template() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "Be kind."},
    ]
    assert FORM.history(messages) == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Hi"},
    ]


@pytest.mark.parametrize(
    ("asked", "told"),
    [("low", "low"), ("high", "high"), ("none", "low"), ("minimal", "low"), ("max", "high")],
)
def test_the_model_is_told_an_effort_that_it_knows(asked: str, told: str) -> None:
    assert template().dialect.reasoning.values(effort=asked) == {"reasoning_effort": told}
