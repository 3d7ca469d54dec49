"""Harmony's grammars: calls, JSON in the final message, and a bound on reasoning tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import END, tokens_of
from heddle.extensions.call_forms.harmony import FINAL, REASONING, Harmony
from heddle.grammars import LARK, Grammar
from heddle.text.constrained.call_grammar import Callee, answer_grammar, calls_grammar
from heddle.text.constrained.thinking_budget import ThinkingBudget
from heddle.text.parsing.reading import Reading
from talking_model import LetterTokenizer, refused_at

if TYPE_CHECKING:
    from heddle.text.parsing.answer_reader import Marks

TOKENIZER = LetterTokenizer()
CITY = {"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CALLEES = [Callee("f", CITY | {"additionalProperties": False}), Callee("f2")]
NAMES = frozenset({"f", "f2"})
FORM = Harmony()
CALL = "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s"


def enforced(marks: Marks | None = None, **how: Any) -> Grammar:
    reading = Reading(FORM, NAMES, marks)
    return Grammar.lark(answer_grammar(reading, CALLEES, TOKENIZER.control_id, **how))


def late(marks: Marks | None = None) -> Grammar:
    text = calls_grammar(FORM, CALLEES, TOKENIZER.control_id)
    return Grammar(LARK, text, beginning=Reading(FORM, NAMES, marks))


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


HM = f"{REASONING.opening}hm{REASONING.closing}"


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f2 <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f2<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f2<|message|>",
        " to=functions.f2<|channel|>commentary json<|message|>",
        HM + "<|channel|>commentary to=functions.f2 json<|message|>",
        HM + HM + "<|channel|>commentary to=functions.f2 json<|message|>",
    ],
)
@pytest.mark.parametrize("make", [enforced, late])
def test_harmony_allows_all_headers_of_a_call(header: str, make: Any) -> None:
    grammar = make(REASONING)
    assert refused_at(grammar, header + '{"any": 1}') is None
    assert refused_at(grammar, header + "[]") == header


def test_harmony_allows_json_in_the_final_message_only() -> None:
    grammar = enforced(REASONING, otherwise={"enum": [1, "a"]})
    assert refused_at(grammar, HM + FINAL + '"a"') is None
    assert refused_at(grammar, "<|channel|>final <|constrain|>json<|message|>1") is None
    assert refused_at(grammar, "1") == ""
    assert refused_at(grammar, FINAL + "2") == FINAL
    opened = Reading(FORM, NAMES, opened=FINAL)
    text = answer_grammar(opened, (), TOKENIZER.control_id, otherwise={"enum": [1]})
    assert refused_at(Grammar.lark(text), "1") is None


OPENING, NEXT = REASONING
TWICE = f"{OPENING}ab{NEXT}{OPENING}c"


@pytest.mark.parametrize(
    ("wanted", "output"),
    [
        (
            f"{OPENING}abc.ZZZZZZZZZZ{FINAL}Yes.",
            f"{OPENING}abc{NEXT}{FINAL}Yes.",
        ),
        (f"{TWICE}.ZZZZZZZZZZ{FINAL}Yes.", f"{TWICE}{NEXT}{FINAL}Yes."),
        (f"{TWICE}{NEXT}{FINAL}Yes, it is.", f"{TWICE}{NEXT}{FINAL}Yes, it is."),
        (f"{FINAL}Yes, it is.", f"{FINAL}Yes, it is."),
    ],
)
def test_three_tokens_of_reasoning(wanted: str, output: str) -> None:
    budget = ThinkingBudget.of(3, Reading(FORM, marks=REASONING), TOKENIZER)
    assert budget is not None
    state, said, seen = budget.bound(None).begin(), [], []
    for token in [*TOKENIZER.encode(wanted), END]:
        allowed = tokens_of(state.next_mask(seen))
        said.append(token if token in allowed or not allowed else allowed[0])
        seen = said[-1:]
    assert "".join(map(TOKENIZER.token_text, said)).removesuffix("<end>") == output
