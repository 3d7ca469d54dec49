"""Grammars of calls: what they allow in each form, and where a late grammar starts."""

from __future__ import annotations

from typing import Any

import pytest

from fake_executor import tokens_of
from heddle.errors import GrammarError
from heddle.grammars import LARK, Grammar
from heddle.text.chat.call_forms import HERMES
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

TOKENIZER = LetterTokenizer()
CITY = {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CLOSED = CITY | {"additionalProperties": False}
CALLEES = [Callee("f", CLOSED), Callee("f2")]
NAMES = frozenset({"f", "f2"})

ONE = {
    HERMES: '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
}
TWO = {
    HERMES: f"{ONE[HERMES]}\n{ONE[HERMES]}",
}


def enforced(form: Any, marks: Marks | None = None, reasons: bool = False, **how: Any) -> Grammar:
    reading = Reading(form, NAMES, marks, reasons)
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(form: Any, marks: Marks | None = None, **how: Any) -> Grammar:
    text = calls_grammar(form, CALLEES, TOKENIZER.control_id, **how)
    return Grammar(LARK, text, beginning=Reading(form, NAMES, marks))


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


def test_a_late_grammar_can_start_inside_a_token() -> None:
    """One token holds the end of the mark and the start of the call."""
    tokens = [*map(ord, "<tool_call"), *TOKENIZER.encode(">{")]
    assert TOKENIZER.token_text(tokens[-1]) == ">{"
    state = TOKENIZER.grammar(late(HERMES)).begin()
    assert tokens_of(state.next_mask(tokens)) == sorted(map(ord, ' \n"'))
    after_name = tokens_of(state.next_mask(TOKENIZER.encode('"name": "f')))
    assert after_name == sorted(map(ord, '2"'))


def test_late_masks_do_not_depend_on_how_tokens_are_grouped() -> None:
    tokens = TOKENIZER.encode('Hm.<tool_call>\n{"name": "f", "arguments": {"city": "Rome"}}')
    one_by_one = TOKENIZER.grammar(late(HERMES)).begin()
    masks = [one_by_one.next_mask([token]) for token in tokens]
    assert b"" in masks
    for place in range(len(tokens)):
        state = TOKENIZER.grammar(late(HERMES)).begin()
        assert state.next_mask(tokens[: place + 1]) == masks[place]


def test_a_mark_in_reasoning_starts_no_call() -> None:
    grammar = late(HERMES, Marks("<think>", "</think>"))
    assert refused_at(grammar, "<think><tool_call>x</think>yes") is None
    assert refused_at(grammar, "<think></think><tool_call>x") is not None


@pytest.mark.parametrize("marks", [Marks("<think>", "</think>"), Marks("[THINK]", "[/THINK]")])
def test_reasoning_is_allowed_before_an_enforced_call(marks: Marks) -> None:
    call = ONE[HERMES] % ("f2", "{}")
    thought = f"{marks.opening}x <tool_call>{marks.closing}\n"
    assert refused_at(enforced(HERMES, marks), thought + call) is None
    assert refused_at(enforced(HERMES, marks), call) is None
    assert refused_at(enforced(HERMES, marks), f"{thought}no") == thought
    assert refused_at(enforced(HERMES, marks), f"{thought}\n{call}") is None, "a line between"
    begun = enforced(HERMES, marks, reasons=True)
    assert refused_at(begun, f"x{marks.closing}{call}") is None
    assert refused_at(begun, call) is not None


def test_an_enforced_call_can_have_an_alternative() -> None:
    grammar = enforced(HERMES, otherwise={"enum": [1, "a"]})
    assert refused_at(grammar, '"a"') is None
    assert refused_at(grammar, ONE[HERMES] % ("f2", "{}")) is None
    assert refused_at(grammar, "2") == ""


def test_unsupported_schema_keywords_are_errors_only_for_strict_functions() -> None:
    schema = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    grammar = Grammar.lark(calls_grammar(HERMES, [Callee("f", schema)], TOKENIZER.control_id))
    assert TOKENIZER.grammar(grammar)
    strict = calls_grammar(HERMES, [Callee("f", schema, strict=True)], TOKENIZER.control_id)
    with pytest.raises(GrammarError, match="uniqueItems"):
        TOKENIZER.grammar(Grammar.lark(strict))
