"""Kimi K3's answers: what their grammars allow, and prompts that open a channel."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.kimi_k3 import KimiK3
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

FORM = KimiK3()
PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer", "maximum": 50},
    "kind": {"enum": ["low", "high"]},
    'a"b': {"type": ["string", "null"]},
}
CLOSED = {"properties": PROPERTIES, "required": ["text"], "additionalProperties": False}
CALLEES = [Callee("edit", CLOSED, strict=True), Callee('cl"ock')]
NAMES = frozenset(("edit", 'cl"ock'))
ASSISTANT = '<|open|>message role="assistant"<|sep|>'
THINK, RESPONSE = "<|open|>think<|sep|>", "<|open|>response<|sep|>"


def call(name: str, *arguments: tuple[str, str, str]) -> str:
    written = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, kind, value in arguments
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{written}<|close|>call<|sep|>'


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_calls_follow_their_functions(late: bool, controls: bool) -> None:
    tokenizer = LetterTokenizer(controls=controls)
    reading = Reading(FORM, NAMES)

    def refused(*calls: str, **how: Any) -> str | None:
        if late:
            text = calls_grammar(FORM, CALLEES, tokenizer.control_id, **how)
            grammar = Grammar(LARK, text, beginning=reading)
        else:
            grammar = Grammar.lark(answer_grammar(reading, CALLEES, tokenizer.control_id, **how))
        text = f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>"
        return refused_at(grammar, text, tokenizer)

    text, clock = ("text", "string", "a <|b"), call("cl&quot;ock")
    for allowed in (
        call("edit", text),
        call("edit", text, ("count", "number", "7"), ("kind", "string", "low")),
        call("edit", text, ("a&quot;b", "null", "null")),
        *(clock, call("cl&quot;ock", ("any", "array", "[1]"))),
    ):
        assert refused(allowed) is None, allowed
    assert refused(clock, clock) is None
    assert refused(clock, clock, parallel=False) is not None
    for forbidden in (
        *(
            call("edit"),
            call("edit", ("text", "number", "1")),
            call("edit", ("count", "number", "1")),
        ),
        *(
            call("edit", text, ("count", "number", "x")),
            call("edit", text, ("count", "number", "51")),
        ),
        *(call("edit", text, ("kind", "string", "other")), call("edit", text, ("b", "string", ""))),
        *(call("new"), call('cl"ock'), "x"),
    ):
        assert refused(forbidden) is not None, forbidden
    assert refused() is not None


@pytest.mark.parametrize(
    ("prompt", "opened", "more"),
    [
        (ASSISTANT + THINK, THINK, "<|close|>think<|sep|>" + RESPONSE),
        (ASSISTANT + RESPONSE, RESPONSE, ""),
        (f"{ASSISTANT}{THINK}Hm.<|close|>think<|sep|>{RESPONSE}So", RESPONSE, ""),
        (ASSISTANT, "", RESPONSE),
        (f"{ASSISTANT}{THINK}Hm.<|close|>think<|sep|>", "", RESPONSE),
        (f"{ASSISTANT}{RESPONSE}So<|end_of_msg|>", "", RESPONSE),
        (THINK, "", RESPONSE),
    ],
)
def test_a_prompt_may_open_a_channel(prompt: str, opened: str, more: str) -> None:
    assert FORM.opened(prompt) == opened
    assert FORM.text_opened(prompt) == prompt + more


@pytest.mark.parametrize(
    ("opened", "said"),
    [
        (THINK, f"Hm.<|close|>think<|sep|>{RESPONSE}1"),
        (RESPONSE, "1"),
        ("", f"{RESPONSE}1"),
        ("", f"{THINK}Hm.<|close|>think<|sep|>{RESPONSE}1"),
    ],
)
def test_an_answer_may_be_json(opened: str, said: str) -> None:
    reasons = opened == THINK
    marks = None if opened and not reasons else FORM.reasoning
    reading = Reading(FORM, NAMES, marks, reasons, opened)
    text = answer_grammar(reading, CALLEES, LetterTokenizer().control_id, otherwise={"enum": [1]})
    assert refused_at(Grammar.lark(text), said) is None
    assert refused_at(Grammar.lark(text), said.removesuffix("1") + "2") is not None
