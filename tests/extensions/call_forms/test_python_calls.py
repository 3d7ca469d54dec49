"""Calls as Python writes them: what their grammars allow, and histories."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.extensions.call_forms.lfm2 import Lfm2
from heddle.extensions.call_forms.llama import LlamaPython
from heddle.extensions.call_forms.olmo3 import Olmo3
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
FORMS: dict[str, tuple[Any, str, str]] = {  # all calls, and what stands between two
    "lfm2": (Lfm2(), "<|tool_call_start|>[%s]<|tool_call_end|>", ", "),
    "llama": (LlamaPython(), "[%s]", ", "),
    "olmo3": (Olmo3(), "<function_calls>%s</function_calls>", "\n"),
}
PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "kind": {"enum": ["low", "high"]},
    "count": {"type": "integer", "maximum": 50},
    "force": {"type": "boolean"},
}
CLOSED: dict[str, Any] = {"properties": PROPERTIES, "additionalProperties": False}
CALLEES = [Callee("f", CLOSED | {"required": ["text"]}), Callee("g", CLOSED), Callee("h")]
NAMES = frozenset("fgh")


def enforced(form: Any, **how: Any) -> Grammar:
    reading = Reading(form, NAMES)
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(form: Any, **how: Any) -> Grammar:
    text = calls_grammar(form, CALLEES, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, NAMES))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", [enforced, late])
def test_arguments_follow_their_schemas(name: str, make: Any) -> None:
    form, written, separator = FORMS[name]
    true, false = form.booleans

    def refused(*calls: str, **how: Any) -> str | None:
        return refused_at(make(form, **how), written % separator.join(calls))

    for allowed in (
        *(
            "f(text='a')",
            f"f(text=\"it's\", kind='low', count=7, force={true})",
            "f(text='a', kind=\"low\", count=7)",
        ),
        *("g()", "g(count=7)", f"g(text='a', force={false})"),
        *("h()", "h(a=1, b=['x', {'c': None}])"),
    ):
        assert refused(allowed) is None, allowed
    assert refused("g()", "h()") is None
    assert refused("g()", "h()", parallel=False) is not None
    for forbidden in (
        *("f()", "f(count=7)", "f(text=3)", "f(text='a', kind='mid')", "f(text='a', count=51)"),
        *("g(other=1)", "g(force=1)", "h(1)", "g(count=7"),
        *(() if name == "llama" and make is late else ("i()", "")),  # text, without a mark
    ):
        assert refused(forbidden) is not None, forbidden


def test_a_template_without_calls_gets_them_in_the_contents() -> None:
    function = {"name": "f", "arguments": {"text": "a", "lines": [1, None], "force": True}}
    said = {
        "role": "assistant",
        "content": "So:",
        "tool_calls": [{"id": "1", "function": function}],
    }
    asked = {"role": "user", "content": "Do it."}
    [first, second] = Lfm2(knows_calls=False).history([asked, said])
    assert first == asked
    written = "[f(text='a', lines=[1, None], force=True)]"
    content = f"So:<|tool_call_start|>{written}<|tool_call_end|>"
    assert second == {"role": "assistant", "content": content}
    assert Lfm2().history([said]) == [said]


def test_a_template_that_writes_no_quotes_gets_strings_with_quotes() -> None:
    function = {"name": "f", "arguments": {"text": 'a "b"\n', "lines": ["é"], "count": 3}}
    said = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
    [message] = LlamaPython(quotes=False).history([said])
    [call] = message["tool_calls"]
    assert call["function"]["arguments"] == {"text": r'"a \"b\"\n"', "lines": ["é"], "count": 3}
    assert LlamaPython().history([said]) == [said]
