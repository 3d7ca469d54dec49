"""Kimi's and DeepSeek's calls: what their grammars allow, and the ids in Kimi's histories."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.deepseek import DeepSeek
from heddle.extensions.call_forms.kimi import Kimi
from heddle.extensions.call_forms.solar_open import SolarOpen
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
CITY = {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CALLEES = [Callee("f", CITY | {"additionalProperties": False}), Callee("f2")]
NAMES = frozenset(("f", "f2"))
FORMS: dict[str, tuple[Any, str]] = {
    "kimi": (
        Kimi(),
        "<|tool_call_begin|>functions.%s:3<|tool_call_argument_begin|>%s<|tool_call_end|>",
    ),
    "solar_open": (
        SolarOpen(),
        "<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>%s<|tool_call:args|>%s<|tool_call:end|>",
    ),
    "deepseek": (DeepSeek(), "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"),
    "deepseek with fences": (
        DeepSeek(fences=True),
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>",
    ),
}


def enforced(form: Any, **how: Any) -> Grammar:
    reading = Reading(form, NAMES)
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(form: Any, **how: Any) -> Grammar:
    text = calls_grammar(form, CALLEES, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, NAMES))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", [enforced, late])
def test_calls_follow_their_functions(name: str, make: Any) -> None:
    form, call = FORMS[name]

    def refused(*calls: str, **how: Any) -> str | None:
        return refused_at(make(form, **how), f"{form.section}{''.join(calls)}{form.section_end}")

    assert refused(call % ("f", '{"city": "Rome"}')) is None
    assert refused(call % ("f2", '{"any": [1]}'), call % ("f2", "{}")) is None
    assert refused(call % ("f2", "{}"), call % ("f2", "{}"), parallel=False) is not None
    assert refused(call % ("f", '{"town": 1}')) is not None
    assert refused(call % ("f2", "[]")) is not None
    assert refused(call % ("f3", "{}")) is not None
    assert refused() is not None


@pytest.mark.parametrize("name", [name for name in FORMS if name != "solar_open"])
def test_a_late_grammar_may_begin_after_the_mark_of_a_call(name: str) -> None:
    form, call = FORMS[name]
    text = f"So: {call % ('f2', '{}')}{form.section_end}"
    assert refused_at(late(form), text) is None
    assert refused_at(late(form), text + "x") == text
    assert refused_at(enforced(form), text) == ""


def test_ids_of_kimi_count_the_calls_of_a_conversation() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": {}}}
    asked = [
        {"role": "assistant", "content": "", "tool_calls": [call, {**call, "id": "b"}]},
        {"role": "tool", "content": "", "tool_call_id": "b"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "a"},
        {"role": "tool", "content": "", "tool_call_id": "unknown"},
        {"role": "assistant", "content": "", "tool_calls": [{**call, "id": "c"}]},
    ]
    first, second, third, fourth, fifth, sixth = Kimi().history(asked)
    assert [one["id"] for one in first["tool_calls"]] == ["functions.f:0", "functions.f:1"]
    assert second["tool_call_id"] == "functions.f:1"
    assert third["tool_calls"][0]["id"] == fourth["tool_call_id"] == "functions.f:2"
    assert fifth["tool_call_id"] == "unknown"
    assert sixth["tool_calls"][0]["id"] == "functions.f:3", "an id that comes again counts again"
    assert call["id"] == "a", "what was given is as it was"


DESCRIBED = """\
## Tools
You have access to the following tools:

### f
Description: Work.

Parameters: {"type": "object"}

### g
Description:\x20

Parameters: {}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>\
{additional_tool_calls}<｜tool▁calls▁end｜>

Where:
"""


def test_a_system_message_describes_functions_as_the_card_of_deepseek_v3_1_does() -> None:
    schema = {"name": "f", "description": "Work.", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": one} for one in (schema, {"name": "g"})]
    asked = {"role": "user", "content": "Do it."}
    form = DeepSeek(describes_tools=True)
    (told, *rest), offered = form.offered([asked], tools)
    assert (rest, offered) == ([asked], None)
    assert (told["role"], told["content"].startswith(DESCRIBED)) == ("system", True)
    (with_words, *_), _ = form.offered([{"role": "system", "content": "Be kind."}, asked], tools)
    assert with_words["content"] == f"Be kind.\n\n{told['content']}"
    assert form.offered([asked], []) == ([asked], None)
    assert DeepSeek().offered([asked], tools) == ([asked], tools)


@pytest.mark.parametrize("joins", [True, False])
def test_a_template_of_deepseek_may_write_text_or_calls(joins: bool) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": {}}}
    said = {"role": "assistant", "content": "So:", "tool_calls": [call]}
    messages = DeepSeek(fences=True, encodes=True, joins=joins).history([said])
    text, calls = {"role": "assistant", "content": "So:"}, {**said, "content": ""}
    assert messages == ([said] if joins else [text, calls])


def test_solar_gets_a_message_for_text_and_one_for_calls() -> None:
    call = {"id": "call_1", "function": {"name": "f", "arguments": {}}}
    said = {"role": "assistant", "content": "So:", "reasoning_content": "Hm."}
    result = {"role": "tool", "content": "1", "tool_call_id": "call_1"}
    text, calls, told = SolarOpen().history([{**said, "tool_calls": [call]}, result])
    assert text == {"role": "assistant", "content": "So:", "reasoning": "Hm."}
    assert (calls["content"], "reasoning" in calls) == ("", False)
    assert calls["tool_calls"][0]["id"] == told["tool_call_id"]
    assert len(told["tool_call_id"]) == 10


@pytest.mark.parametrize(
    ("prompt", "opened", "with_text"),
    [
        ("<|begin|>assistant", "", "<|content|>"),
        ("<|begin|>assistant<|think|><|end|><|begin|>assistant", "", "<|content|>"),
        ("<|begin|>assistant<|content|>So", "<|content|>", ""),
        ("<|begin|>assistant<|think|>Hm", "<|think|>", ""),
    ],
)
def test_a_prompt_may_open_a_message_of_solar(prompt: str, opened: str, with_text: str) -> None:
    form = SolarOpen()
    assert form.opened(prompt) == opened
    assert form.text_opened(prompt) == prompt + with_text


def test_an_answer_of_solar_may_be_json() -> None:
    reading = Reading(SolarOpen(), NAMES, SolarOpen.reasoning)
    text = answer_grammar(reading, CALLEES, TOKENIZER.control_id, otherwise={"enum": [1]})
    hm = "<|think|>Hm<|end|><|begin|>assistant"
    for allowed in ("<|content|>1", f"{hm}<|content|>1"):
        assert refused_at(Grammar.lark(text), allowed) is None
    assert refused_at(Grammar.lark(text), "1") == ""
