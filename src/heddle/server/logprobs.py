"""Log probabilities in the shapes of OpenAI's APIs."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.types import TokenLogprob

LOWEST = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON cannot say."""


class Spelling(Protocol):
    """What is needed of a tokenizer here."""

    def token_bytes(self, id: int, /) -> bytes: ...

    def token_text(self, id: int, /) -> str: ...


def token_name(spelling: Spelling, token: int) -> str:
    """A token as text; part of a character as OpenAI writes it: `bytes:\\xe2\\x82`."""
    raw = spelling.token_bytes(token)
    if not raw:
        return spelling.token_text(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(spelling: Spelling, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion. A token that leaves no text has null bytes."""
    return {"content": _entries(spelling, tokens, no_bytes=None), "refusal": None}


def response_logprobs(spelling: Spelling, tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """`logprobs` of the text of a response. A token that leaves no text has no bytes."""
    return _entries(spelling, tokens, no_bytes=[])


def _entries(
    spelling: Spelling, tokens: Iterable[TokenLogprob], no_bytes: list[int] | None
) -> list[dict[str, Any]]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_name(spelling, token),
            "logprob": max(logprob, LOWEST),
            "bytes": list(spelling.token_bytes(token)) or no_bytes,
        }

    return [
        entry(item.token, item.logprob) | {"top_logprobs": [entry(*pair) for pair in item.top]}
        for item in tokens
    ]


class CompletionLogprobs:
    """`choices[].logprobs` of one choice of a completion, in one piece or in many.

    `text_offset` counts characters of the choice's own text before the token.
    """

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def of(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """The next piece."""
        names: list[str] = []
        logprobs: list[float] = []
        top: list[dict[str, float]] = []
        offsets: list[int] = []
        for item in tokens:
            names.append(token_name(self._spelling, item.token))
            logprobs.append(max(item.logprob, LOWEST))
            top.append(self._top(item))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._spelling.token_bytes(item.token)))
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _top(self, item: TokenLogprob) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, logprob in item.top:
            # Best first: of two tokens with one spelling the likelier stays.
            top.setdefault(token_name(self._spelling, token), max(logprob, LOWEST))
        return top
