"""Wishes about reasoning as each template's variables, and the marks that templates show."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.text.chat.template import ChatTemplate
from heddle.text.parsing.parts import ParsedAnswer

SWITCH = "{{ enable_thinking }}"
MODE = "{{ thinking_mode }}"
OLD_AND_NEW = "{{ enable_thinking }}{{ thinking }}"
OPEN = "{{ reasoning_effort }}"
CLOSED = "{% if reasoning_effort not in ['high', 'low', 'no_think'] %}{% endif %}"
FEW = "{% if thinking and thinking_effort not in ['low', 'high', 'max'] %}{% endif %}"
BUDGET = "{{ thinking_budget }}"


def wished(template: str, **wish: Any) -> dict[str, Any]:
    return ChatTemplate(template, "", "").dialect.reasoning.values(**wish)


@pytest.mark.parametrize(
    ("template", "wish", "variables"),
    [
        ("", {"enabled": False, "effort": "high", "most": 3}, {}),
        (SWITCH, {"enabled": False}, {"enable_thinking": False}),
        (SWITCH, {"effort": "high"}, {}),
        (OLD_AND_NEW, {"enabled": True}, {"enable_thinking": True, "thinking": True}),
        (MODE, {"enabled": False}, {"thinking_mode": "disabled"}),
        (MODE, {"enabled": True}, {"thinking_mode": "enabled"}),
        (OPEN, {"effort": "anything"}, {"reasoning_effort": "anything"}),
        (OPEN, {"effort": "none", "enabled": False}, {"reasoning_effort": "none"}),
        (OPEN, {"enabled": False}, {}),
        *(
            (CLOSED, {"effort": effort}, {"reasoning_effort": value})
            for effort, value in {
                "none": "no_think",
                "minimal": "low",
                "low": "low",
                "medium": "high",
                "max": "high",
            }.items()
        ),
        (CLOSED, {"effort": "anything"}, {}),
        (CLOSED, {"enabled": False}, {"reasoning_effort": "no_think"}),
        (CLOSED, {"enabled": True}, {"reasoning_effort": "high"}),
        (FEW, {"effort": "xhigh"}, {"thinking_effort": "max"}),
        (FEW, {"effort": "none", "enabled": False}, {"thinking": False, "thinking_effort": "low"}),
        (FEW, {"enabled": False}, {"thinking": False}),
        (BUDGET, {"most": 9}, {"thinking_budget": 9}),
        (BUDGET, {"enabled": False, "most": 9}, {"thinking_budget": 0}),
        (BUDGET, {"enabled": True}, {}),
    ],
)
def test_a_wish_becomes_the_variables_of_the_template(
    template: str, wish: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert wished(template, **wish) == variables


@pytest.mark.parametrize(
    ("template", "given", "more"),
    [
        (SWITCH, {"thinking": False}, {"enable_thinking": False}),
        (SWITCH, {"enable_thinking": True}, {}),
        (SWITCH, {"enable_thinking": "auto"}, {}),
        (SWITCH, {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (SWITCH, {"reasoning_effort": "low"}, {"enable_thinking": True}),
        (OLD_AND_NEW, {"thinking": False}, {"enable_thinking": False}),
        (CLOSED, {"enable_thinking": False}, {"reasoning_effort": "no_think"}),
        (FEW, {"reasoning_effort": "medium"}, {"thinking": True, "thinking_effort": "high"}),
        (BUDGET, {"enable_thinking": False}, {"thinking_budget": 0}),
        (BUDGET, {"thinking_budget": 7}, {}),
        ("", {"enable_thinking": False, "other": 1}, {}),
    ],
)
def test_names_of_other_families_are_translated(
    template: str, given: dict[str, Any], more: dict[str, Any]
) -> None:
    variables = ChatTemplate(template, "", "").dialect.reasoning.translated(given)
    assert variables == given | more


@pytest.mark.parametrize(
    ("shown", "opening", "closing"),
    [
        ("</think>", "<think>", "</think>"),
        ("[/THINK]", "[THINK]", "[/THINK]"),
        ("</mm:think>", "<mm:think>", "</mm:think>"),
        ("'</think{}>'.format(x)", "<think:opensource>", "</think:opensource>"),
        ("<|channel>thought\n<channel|>", "<|channel>thought\n", "<channel|>"),
        ("<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|inner_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"),
        ("<|end_of_thought|>", "<|begin_of_thought|>", "<|end_of_thought|>"),
        ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    ],
)
def test_reasoning_is_read_wherever_it_opens(shown: str, opening: str, closing: str) -> None:
    dialect = ChatTemplate("{# " + shown + " #}", "", "").dialect
    said = f"Hm.\n{closing}\nYes."
    for prompt, text in (("", opening + said), (f"Q{opening}", said)):
        assert dialect.reading(prompt).read(text) == ParsedAnswer("Yes.", "Hm.")
    assert dialect.reading(f"{opening}{closing}\n").read("Yes.") == ParsedAnswer("Yes.")
    assert dialect.reading("").read("Yes.") == ParsedAnswer("Yes.")


def test_a_tag_inside_a_mark_may_be_a_control_token() -> None:
    reading = ChatTemplate("{# <channel|> #}", "", "").dialect.reading("")
    tokens = {"<|channel>": 7, "<channel|>": 8}
    assert set(reading.controls(tokens.get)) == set(tokens)
