"""Grammars that requests ask for. Plain data; `text/constrained/` compiles them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from heddle.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_GRAMMAR_LENGTH = 131_072


class GrammarKind(Enum):
    """The language of a :class:`Grammar`."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"
    GBNF = "gbnf"
    STRUCTURAL_TAG = "structural_tag"


class Beginning(Protocol):
    """Detects where in an output the grammar starts."""

    @property
    def specials(self) -> Sequence[str]:
        """Control tokens that the detection reads as text."""
        ...

    def watch(self) -> Callable[[str], str | None]:
        """A function that detects the start in one output.

        The caller passes the output's text piece by piece. The function returns None before the
        start. At the start it returns the rest of the piece, which the grammar must match.
        """
        ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the whole output must match.

    The output is incomplete if `max_tokens`, a stop string or a cancel ends it early.

    Attributes:
        kind: the language of `text`.
        text: a JSON schema; a regular expression in Rust's syntax, for the whole output; a JSON
            list of strings that the output must be one of; a grammar in llguidance's form of Lark;
            a grammar in llama.cpp's form (GBNF); or xgrammar's structural tag, as JSON. At most
            131,072 characters.
        param: the request's field that holds the grammar, for errors.
        beginning: detects where the grammar starts; None: at the first token. Text before the start
            is free. An output without a start is free too.

    Raises:
        GrammarError: the text is too long, or is not Unicode.
    """

    kind: GrammarKind
    text: str
    param: str = "grammar"
    beginning: Beginning | None = None

    def __post_init__(self) -> None:
        if len(self.text) > MAX_GRAMMAR_LENGTH:
            raise GrammarError(
                f"{self.param} has {len(self.text):,} characters; the limit is"
                f" {MAX_GRAMMAR_LENGTH:,}. Send a shorter grammar",
                param=self.param,
            )
        if any("\ud800" <= character <= "\udfff" for character in self.text):
            raise GrammarError(
                f"{self.param} contains half of a surrogate pair; send valid Unicode",
                param=self.param,
            )

    @classmethod
    def json_schema(cls, schema: Mapping[str, object], param: str = "grammar") -> Grammar:
        """A grammar of JSON that `schema` allows."""
        return cls(GrammarKind.JSON_SCHEMA, json.dumps(schema), param)

    @classmethod
    def regex(cls, pattern: str, param: str = "grammar") -> Grammar:
        """A grammar of text that `pattern` matches from the first to the last character."""
        return cls(GrammarKind.REGEX, pattern, param)

    @classmethod
    def choice(cls, choices: Sequence[str], param: str = "grammar") -> Grammar:
        """A grammar of the strings in `choices`."""
        return cls(GrammarKind.CHOICE, json.dumps(list(choices)), param)

    @classmethod
    def gbnf(cls, grammar: str, param: str = "grammar") -> Grammar:
        """A grammar, in llama.cpp's form, of text that the rule `root` matches."""
        return cls(GrammarKind.GBNF, grammar, param)

    @classmethod
    def structural_tag(cls, tag: Mapping[str, object], param: str = "grammar") -> Grammar:
        """A grammar of free text with parts that are constrained, in xgrammar's form."""
        return cls(GrammarKind.STRUCTURAL_TAG, json.dumps(tag), param)

    @classmethod
    def lark(cls, grammar: str, param: str = "grammar") -> Grammar:
        """A grammar of text that the rule `start` matches."""
        return cls(GrammarKind.LARK, grammar, param)
