"""The languages, each with the methods of `heddle.text.constrained.language.Language`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from heddle.extensions.grammars.gbnf.lark import lark
from heddle.extensions.grammars.patterns.masks import PatternMasks, TokenTexts
from heddle.extensions.grammars.structural_tag import structural_tag_source
from heddle.text.constrained.language import JSON_OPTIONS
from heddle.text.constrained.lark_regex import lark_regex

if TYPE_CHECKING:
    from heddle.text.constrained.language import Tokens


class Regex:
    """Text that a regular expression in Rust's syntax matches from beginning to end."""

    def __init__(self, tokens: Tokens) -> None:
        self._texts = TokenTexts(tokens)

    def source(self, text: str) -> str:
        return LLMatcher.grammar_from_lark(f"start: {lark_regex(text)}")

    def masks(self, text: str) -> PatternMasks | None:
        """The masks of the expression; None if its syntax is unknown."""
        return PatternMasks.of(text, self._texts)


class Choice:
    """One string of a JSON list."""

    def __init__(self, _tokens: Tokens) -> None:
        """The tokens do not matter."""

    def source(self, text: str) -> str:
        choices = json.loads(text)
        if not choices or not all(isinstance(one, str) and one for one in choices):
            raise ValueError("it must be a list of non-empty strings")
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))

    def masks(self, _text: str) -> None:
        """None: llguidance makes the masks."""


class Gbnf:
    """Text that the rule `root` of llama.cpp's form matches."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def source(self, text: str) -> str:
        return LLMatcher.grammar_from_lark(lark(text, self._tokens))

    def masks(self, _text: str) -> None:
        """None: llguidance makes the masks."""


class StructuralTag:
    """Free text with parts that are constrained, in xgrammar's form."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def source(self, text: str) -> str:
        return structural_tag_source(text, JSON_OPTIONS, self._tokens)

    def masks(self, _text: str) -> None:
        """None: llguidance makes the masks."""
