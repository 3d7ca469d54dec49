"""A bound on reasoning tokens: what counts, what is forced, and the grammar inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import END, tokens_of
from heddle.text.constrained.thinking_budget import ThinkingBudget
from heddle.text.parsing.answer_reader import Marks
from heddle.text.parsing.reading import Reading
from patterns import regular
from talking_model import LetterTokenizer

if TYPE_CHECKING:
    from heddle.token_rules import TokenGrammar

TOKENIZER = LetterTokenizer()
THINK = Reading(marks=Marks("<think>", "</think>"))
CONTROL = Reading(marks=Marks("[THINK]", "[/THINK]"))
BEGUN = Reading(marks=Marks("<think>", "</think>"), reasons=True)


def bound(most: int, reading: Reading, grammar: TokenGrammar | None = None) -> TokenGrammar:
    budget = ThinkingBudget.of(most, reading, TOKENIZER)
    assert budget is not None
    return budget.bound(grammar)


def generated(grammar: TokenGrammar, wanted: str) -> str:
    """The output of a model that wants to say `wanted`, where a mask does not force a token."""
    state, output, seen = grammar.begin(), [], []
    for token in [*TOKENIZER.encode(wanted), END]:
        allowed = tokens_of(state.next_mask(seen))
        output.append(token if token in allowed or not allowed else allowed[0])
        seen = output[-1:]
    return "".join(map(TOKENIZER.token_text, output)).removesuffix("<end>")


@pytest.mark.parametrize(
    ("reading", "wanted", "output"),
    [
        (THINK, "<think>abc........Yes.", "<think>abc</think>Yes."),
        (THINK, " \n<think>abc........Yes.", " \n<think>abc</think>Yes."),
        (THINK, "<think>ab</think>Yes, it is.", "<think>ab</think>Yes, it is."),
        (THINK, "<think>abc</think>Yes.", "<think>abc</think>Yes."),
        (THINK, "No <think>abcdefghijklm", "No <think>abcdefghijklm"),
        (THINK, "<thin abcdefghijklm", "<thin abcdefghijklm"),
        (THINK, "<think>a</......Yes.", "<think>a</think>Yes."),
        (THINK, "<think>a<b........Yes.", "<think>a<b</think>Yes."),
        (THINK, "<think>ab</think><think>more", "<think>ab</think><think>more"),
        (BEGUN, "abc........Yes.", "abc</think>Yes."),
        (CONTROL, "[THINK]abc.Yes.", "[THINK]abc[/THINK]Yes."),
    ],
)
def test_three_tokens_of_reasoning(reading: Reading, wanted: str, output: str) -> None:
    assert generated(bound(3, reading), wanted) == output


def test_a_token_that_completes_the_opening_mark_and_goes_on_counts() -> None:
    spelled = [*map(ord, "<think"), *TOKENIZER.encode(">{")]
    one, two = (bound(most, THINK).begin().next_mask(spelled) for most in (1, 2))
    assert (tokens_of(one), two) == ([ord("<")], b"")


def test_without_a_token_to_spend_the_mark_comes_at_once() -> None:
    assert generated(bound(0, BEGUN), "........Yes.") == "</think>Yes."
    assert generated(bound(0, THINK), "<think>........Yes.") == "<think></think>Yes."


@pytest.mark.parametrize("reading", [THINK, BEGUN, CONTROL])
def test_a_mask_depends_on_the_tokens_only(reading: Reading) -> None:
    """Preemption rebuilds a state from all tokens so far."""
    opening, closing = reading.marks or ("", "")
    tokens = TOKENIZER.encode(f"{'' if reading.reasons else opening}abc{closing}Yes.")
    state = bound(3, reading).begin()
    for count in range(len(tokens)):
        mask = state.next_mask(tokens[count - 1 : count] if count else [])
        assert mask == bound(3, reading).begin().next_mask(tokens[:count])


def test_the_grammar_inside_goes_on() -> None:
    regex = TOKENIZER.grammar(regular("<think>[a-z]*<.think>(Yes|No)"))
    assert generated(bound(3, THINK, regex), "<think>abc........No") == "<think>abc</think>No"
    assert generated(bound(9, THINK, regex), "<think>ab</think>No") == "<think>ab</think>No"


def test_a_mark_that_the_grammar_forbids_is_not_forced() -> None:
    regex = TOKENIZER.grammar(regular("[a-z]*"))
    assert generated(bound(3, BEGUN, regex), "abcdef") == "abcdef"


class Mute(LetterTokenizer):
    """Has no token for the closing mark."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [128 for _ in text]


class Ending(LetterTokenizer):
    """The closing mark ends a text."""

    eos_ids = frozenset({END, 132})


def test_where_no_bound_can_be_kept() -> None:
    assert ThinkingBudget.of(3, Reading(), TOKENIZER) is None
    assert ThinkingBudget.of(3, THINK, Mute()) is None
    assert ThinkingBudget.of(3, CONTROL, Ending()) is None
