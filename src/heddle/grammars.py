"""Grammars that requests ask for. Plain data; `text/constrained/` compiles them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from heddle.doors import extensions
from heddle.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

MAX_GRAMMAR_LENGTH = 131_072


JSON_SCHEMA, LARK = "json_schema", "lark"
"""The languages that the core reads. Extensions bring the others."""


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
        kind: the language of `text`: "json_schema", "lark" (llguidance's form), or a language of an
            extension.
        text: the grammar. At most 131,072 characters.
        param: the request's field that holds the grammar, for errors.
        beginning: detects where the grammar starts; None: at the first token. Text before the start
            is free. An output without a start is free too.

    Raises:
        GrammarError: the text is too long, or is not Unicode; or no extension brings its language.
    """

    kind: str
    text: str
    param: str = "grammar"
    beginning: Beginning | None = None

    def __post_init__(self) -> None:
        if self.kind not in _kinds():
            raise GrammarError(
                f"{self.param} cannot be served: no extension is installed that reads grammars of"
                f" kind {self.kind!r}; use one of: {', '.join(_kinds())}",
                param=self.param,
            )
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
    def of(cls, kind: str, value: object, param: str = "grammar") -> Grammar:
        """A grammar in the language `kind`. A value that is no text becomes JSON."""
        return cls(kind, value if isinstance(value, str) else json.dumps(value), param)

    @classmethod
    def json_schema(cls, schema: Mapping[str, object], param: str = "grammar") -> Grammar:
        """A grammar of JSON that `schema` allows."""
        return cls(JSON_SCHEMA, json.dumps(schema), param)

    @classmethod
    def lark(cls, grammar: str, param: str = "grammar") -> Grammar:
        """A grammar of text that the rule `start` matches."""
        return cls(LARK, grammar, param)


@cache
def _kinds() -> Collection[str]:
    """All kinds of grammars: the core's, and those of extensions."""
    brought = (kind for extension in extensions().values() for kind in extension.grammars)
    return {JSON_SCHEMA: None, LARK: None, **dict.fromkeys(brought)}
