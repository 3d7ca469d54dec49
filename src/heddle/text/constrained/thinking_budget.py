"""Bounds the reasoning tokens of an answer. At the bound, the mask allows only the closing mark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.text.tokenizer.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.text.constrained.language import Tokens
    from heddle.text.parsing.answer_reader import Marks
    from heddle.text.parsing.reading import Reading
    from heddle.token_rules import GrammarState, TokenGrammar


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """The bound on the reasoning of the answers to one prompt.

    Attributes:
        most: largest number of reasoning tokens of an answer.
        marks: marks of reasoning.
        reasons: whether the answer begins inside its reasoning.
        closing: the tokens of the closing mark.
        tokens: the model's tokenizer.
        shown: control tokens that are marks.
        reopens: whether the model may reason again after it closed its reasoning.
    """

    most: int
    marks: Marks
    reasons: bool
    closing: list[int]
    tokens: Tokens
    shown: list[int]
    reopens: bool

    @classmethod
    def of(cls, most: int, reading: Reading, tokens: Tokens) -> ThinkingBudget | None:
        """The bound. None if Heddle cannot enforce it.

        Heddle cannot enforce it if the answer has no marks of reasoning, or if the model's tokens
        do not spell the closing mark.
        """
        marks = reading.marks
        if marks is None:
            return None
        shown = [id for mark in reading.specials if (id := tokens.control_id(mark)) is not None]
        closing = tokens.encode(marks.closing, add_special=False, continues=True)
        text = Detokenizer(tokens, shown=shown)
        spelled = "".join(map(text.push, closing)) == marks.closing
        if not spelled or any(id in tokens.eos_ids for id in closing):
            return None
        return cls(most, marks, reading.reasons, closing, tokens, shown, reading.frames)

    def bound(self, grammar: TokenGrammar | None) -> BoundGrammar:
        """Add this bound to `grammar`; None if the output has no grammar."""
        return BoundGrammar(self, grammar)


class BoundGrammar:
    """A bound on the reasoning, and perhaps a grammar; see `heddle.token_rules.TokenGrammar`."""

    def __init__(self, budget: ThinkingBudget, grammar: TokenGrammar | None) -> None:
        self._budget = budget
        self._grammar = grammar

    def begin(self) -> BoundState:
        """A state for one output."""
        state = None if self._grammar is None else self._grammar.begin()
        return BoundState(self._budget, state)


class BoundState:
    """One output's place in a `BoundGrammar`; see `heddle.token_rules.GrammarState`."""

    def __init__(self, budget: ThinkingBudget, grammar: GrammarState | None) -> None:
        self._budget = budget
        self._grammar = grammar
        self._detokenizer = Detokenizer(budget.tokens, shown=budget.shown)
        self._text = ""  # newest text: it may contain a mark or a part of it
        self._reasons = budget.reasons
        self._answers = False
        self._reasoning: list[int] = []

    def next_mask(self, tokens: Sequence[int]) -> bytes:
        """See `heddle.token_rules.GrammarState`.

        The grammar has priority: if it does not allow the closing mark, nothing forces the mark.
        """
        for token in tokens:
            if not self._answers:
                self._observe(token)
        mask = b"" if self._grammar is None else self._grammar.next_mask(tokens)
        if not self._reasons or self._answers or len(self._reasoning) < self._budget.most:
            return mask
        forced = self._next_of_closing()
        return _only(forced) if not mask or _allows(mask, forced) else mask

    def rewind(self, count: int) -> bool:
        """See `heddle.token_rules.GrammarState`. The text cannot go back."""
        return False

    def _observe(self, token: int) -> None:
        self._text += self._detokenizer.push(token)
        if not self._reasons:
            self._reasons = self._after_opening()
            if not self._reasons or not self._text:
                return
        self._reasoning.append(token)
        closing = self._budget.marks.closing
        _, closed, after = self._text.partition(closing)
        if closed and self._budget.reopens:
            self._reasons, self._text = False, after
            if self._reasoning[-len(self._budget.closing) :] == self._budget.closing:
                del self._reasoning[-len(self._budget.closing) :]
        else:
            self._answers = bool(closed)
            self._text = self._text[-len(closing) :]

    def _after_opening(self) -> bool:
        """Whether the opening mark is complete. An answer without the mark at its start, after
        optional space, has no reasoning."""
        opening, text = self._budget.marks.opening, self._text.lstrip()
        if not text.startswith(opening):
            self._answers = not opening.startswith(text)
            return False
        self._text = text.removeprefix(opening)
        return True

    def _next_of_closing(self) -> int:
        """The next token of the closing mark. The model may have written its first tokens."""
        closing, reasoning = self._budget.closing, self._reasoning
        written = next(
            count
            for count in reversed(range(len(closing)))
            if reasoning[len(reasoning) - count :] == closing[:count]
        )
        return closing[written]


def _only(token: int) -> bytes:
    """The mask that allows `token` alone."""
    mask = bytearray(token // 8 + 1)
    mask[-1] = 1 << token % 8
    return bytes(mask)


def _allows(mask: bytes, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)
