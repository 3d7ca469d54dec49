"""The form of calls and reasoning that a chat template shows, and the template's input."""

from __future__ import annotations

from typing import Any

import pytest

import templates
from heddle.text.chat.call_forms import HERMES
from heddle.text.chat.template import ChatTemplate
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.reading import Reading

ASKED = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
THINK = Marks("<think>", "</think>")


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, "", "")


@pytest.mark.parametrize(
    ("source", "form", "knows_tools", "marks"),
    [
        (templates.CHATML, HERMES, False, None),
        (templates.CHATML + "{# <tool_call> #}", HERMES, False, None),
        (templates.HERMES, HERMES, True, None),
        (templates.HERMES + "{# <function=x> #}", HERMES, False, None),
        (templates.HERMES + "{# <arg_key> #}", HERMES, False, None),
        (templates.QWEN3, HERMES, True, THINK),
        (templates.THINKING, HERMES, False, THINK),
        (templates.CHATML + "{# [/THINK] #}", HERMES, False, Marks("[THINK]", "[/THINK]")),
        (
            templates.CHATML + "{# </seed:think> #}",
            *(HERMES, False, Marks("<seed:think>", "</seed:think>")),
        ),
        (templates.HERMES.replace("tools", "xs"), HERMES, False, None),
        ("{{ tools | tojson }}{{ messages }} calls in a form of its own", HERMES, False, None),
    ],
)
def test_the_dialect_follows_the_template(
    source: str, form: object, knows_tools: bool, marks: Marks | None
) -> None:
    dialect = template(source).dialect
    assert (dialect.form, dialect.knows_tools, dialect.marks) == (form, knows_tools, marks)


@pytest.mark.parametrize(
    ("prompt", "begun", "marks", "reasons", "resumes"),
    [
        ("assistant\n", "", THINK, False, False),
        ("assistant\n<think>\n", "", THINK, True, False),
        ("assistant\n<think>\n\n</think>\n\n", "", None, False, False),
        ("say <think>", "", THINK, True, False),
        ("<think>\n", "<think>\n", THINK, True, False),
        ("<think>\nHm", "<think>\nHm", THINK, True, True),
        ("<think>\nHm</think> So", "<think>\nHm</think> So", THINK, False, False),
        ("<think>\nHm", "Hm", THINK, True, True),
        ("So", "So", THINK, False, False),
    ],
)
def test_the_prompt_can_open_reasoning(
    prompt: str, begun: str, marks: Marks | None, reasons: bool, resumes: bool
) -> None:
    dialect = template(templates.QWEN3).dialect
    reading = dialect.reading(prompt, {"f": {}}, begun)
    assert reading == Reading(HERMES, frozenset({"f"}), marks, reasons, resumes=resumes)
    assert dialect.reading(prompt, {}, begun).form is None


def call(id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


HISTORY = [
    *ASKED,
    {"role": "assistant", "content": "So:", "tool_calls": [call("call_1", x=1), call("123456789")]},
    {"role": "tool", "content": "one", "tool_call_id": "call_1"},
    {"role": "tool", "content": "two", "tool_call_id": "123456789"},
    {"role": "assistant", "content": "Done."},
]


def test_a_template_with_tools_gets_the_tools() -> None:
    dialect = template(templates.HERMES).dialect
    assert dialect.conversation(HISTORY, TOOLS) == (HISTORY, TOOLS)
    assert dialect.conversation(ASKED, []) == (ASKED, None)


@pytest.mark.parametrize(
    ("source", "role"),
    [(templates.HERMES, "system"), (templates.HERMES + "{# developer #}", "developer")],
)
def test_developer_messages_are_not_left_out(source: str, role: str) -> None:
    said = [{"role": "developer", "content": "Be brief."}, *ASKED]
    messages, _ = template(source).dialect.conversation(said, [])
    assert messages == [{"role": role, "content": "Be brief."}, *ASKED]


def test_other_templates_get_calls_as_text() -> None:
    messages, tools = template(templates.CHATML).dialect.conversation(HISTORY, TOOLS)
    assert tools is None
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert '\n{"type": "function", "function": {"name": "f"' in messages[0]["content"]
    assert messages[2] == {
        "role": "assistant",
        "content": 'So:\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    }
    assert messages[3]["content"] == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    )
    untold, _ = template(templates.CHATML).dialect.conversation(HISTORY, [])
    assert untold == messages[1:]
