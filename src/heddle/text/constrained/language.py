"""The languages of grammars: each translates its texts for llguidance.

The core reads JSON schemas and llguidance's form of Lark. Extensions bring other languages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from llguidance import LLMatcher

from heddle.doors import extensions, refer
from heddle.grammars import JSON_SCHEMA, LARK

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llguidance._lib import JsonCompileOptions

JSON_SPACE = r" ?|\n[ \t]{0,32}"
"""Space between JSON's tokens: none, one space, or a new line and its indentation. Without a bound
a small model may generate spaces without end."""
JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": JSON_SPACE}
"""llguidance's options for all JSON schemas."""


class Tokens(Protocol):
    """The methods of a tokenizer that grammars use; see
    `heddle.text.tokenizer.tokenizer.Tokenizer`."""

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> Collection[int]: ...
    def token_bytes(self, id: int, /) -> bytes: ...
    def token_text(self, id: int, /) -> str: ...
    def is_special(self, id: int, /) -> bool: ...
    def control_id(self, text: str, /) -> int | None: ...
    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        continues: bool = False,
    ) -> list[int]: ...


class KnownPlace(Protocol):
    """One output's place among known masks."""

    def mask_after(self, tokens: Sequence[int]) -> bytes | None:
        """The mask after more tokens of the output; None if it is not known."""
        ...

    def keep(self, mask: bytes) -> None:
        """Remember the mask of this place, which was not known."""
        ...

    def rewind(self, count: int) -> None:
        """Take back the last `count` tokens of the output."""
        ...


class KnownMasks(Protocol):
    """Masks of one grammar that need not be made again. Threads share it."""

    def begin(self) -> KnownPlace:
        """The place of an output that is empty."""
        ...


class Language(Protocol):
    """A language of grammars over one model's tokens. Threads share it."""

    def source(self, text: str) -> str:
        """The grammar as llguidance reads it.

        Raises:
            ValueError: the grammar is wrong.
        """
        ...

    def masks(self, text: str) -> KnownMasks | None:
        """A store of masks of the grammar, if the language can tell places with equal masks."""
        ...


class JsonSchema:
    """JSON that a schema allows."""

    def source(self, text: str) -> str:
        return LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)

    def masks(self, _text: str) -> None:
        """None: llguidance makes the masks."""


class Lark:
    """Text that the rule `start` of llguidance's Lark matches."""

    def source(self, text: str) -> str:
        return LLMatcher.grammar_from_lark(text)

    def masks(self, _text: str) -> None:
        """None: llguidance makes the masks."""


def languages(tokens: Tokens) -> Mapping[str, Language]:
    """All languages over a model's tokens, by kind of :class:`heddle.grammars.Grammar`."""
    found: dict[str, Language] = {JSON_SCHEMA: JsonSchema(), LARK: Lark()}
    for extension in extensions().values():
        found |= {kind: refer(one)(tokens) for kind, one in extension.grammars.items()}
    return found
