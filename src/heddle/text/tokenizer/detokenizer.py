"""Turns the tokens of one output into text, token by token.

Generated text keeps its leading space, as in llama.cpp's server, because it continues the prompt.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

from heddle.text.parsing.stop import StopStrings

if TYPE_CHECKING:
    from collections.abc import Collection


class TokenTexts(Protocol):
    """The methods of a tokenizer that a detokenizer uses."""

    def token_bytes(self, id: int, /) -> bytes: ...
    def token_text(self, id: int, /) -> str: ...


_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns one sequence's tokens into text that is safe to send.

    The results of all `push` calls and of `finish`, joined, are the text of all tokens up to the
    first stop string. The detokenizer holds back at most an incomplete character and the end that
    may become a stop string. Broken UTF-8 becomes U+FFFD.

    Attributes:
        stopped_by: the stop string that ended the text; None before. Later text is dropped.
    """

    def __init__(
        self,
        tokenizer: TokenTexts,
        stop: tuple[str, ...] = (),
        min_tokens: int = 0,
        shown: Collection[int] = (),
    ) -> None:
        """Search for stop strings only after the first `min_tokens` tokens.

        The text includes control tokens that are in `shown`.
        """
        self._token_bytes = tokenizer.token_bytes
        if shown:
            texts = {token: tokenizer.token_text(token).encode() for token in shown}
            self._token_bytes = lambda id: texts.get(id) or tokenizer.token_bytes(id)
        self._decode = _utf8("replace").decode
        self._stop = StopStrings(stop) if stop else None
        self._held = ""
        self._unstoppable = min_tokens
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """Add one token. Returns the text that is now safe to send."""
        text = self._decode(self._token_bytes(token))
        if self._unstoppable:
            self._unstoppable -= 1
            return text
        return text if self._stop is None else self._release(text)

    def finish(self) -> str:
        """The text that is still held back. An incomplete character becomes U+FFFD."""
        text = self._release(self._decode(b"", True)) + self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self._stop is None:
            return text
        if self.stopped_by is not None:
            return ""
        start = self._stop.feed(text)
        text = self._held + text
        if start is None:
            safe = len(text) - self._stop.pending
            self._held = text[safe:]
        else:
            safe = len(self._held) + start
            self.stopped_by = text[safe : safe + self._stop.found]
            self._held = ""
        return text[:safe]
