"""Writes log probabilities in OpenAI's shapes; log probabilities of prompts in vLLM's shape."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.outputs import PromptLogprob, TokenLogprob
    from heddle.server.generate.token_parts import TokenSpelling

_utf8 = codecs.getincrementaldecoder("utf-8")

LOWEST = -9999.0
"""OpenAI's value for minus infinity, which JSON does not have."""


def token_name(spelling: TokenSpelling, token: int) -> str:
    """A token as text. A part of a character is written as in OpenAI's API: `bytes:\\xe2\\x82`."""
    raw = spelling.token_bytes(token)
    if not raw:
        return spelling.token_text(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(spelling: TokenSpelling, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion. `bytes` is null for a token without text."""
    return {"content": _entries(spelling, tokens, no_bytes=None), "refusal": None}


def response_logprobs(
    spelling: TokenSpelling, tokens: Iterable[TokenLogprob]
) -> list[dict[str, Any]]:
    """`logprobs` of the text of a response. `bytes` is empty for a token without text."""
    return _entries(spelling, tokens, no_bytes=[])


def _entries(
    spelling: TokenSpelling, tokens: Iterable[TokenLogprob], no_bytes: list[int] | None
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


def prompt_logprobs(
    spelling: TokenSpelling, prompt: Iterable[PromptLogprob | None], top: int
) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` in vLLM's shape: for each prompt token, an object by token id.

    The object has the prompt token and the `top` likeliest tokens. It is None for the first prompt
    token.
    """

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        name = token_name(spelling, token)
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": name}

    def entries(one: PromptLogprob) -> dict[str, Any]:
        found = {str(one.token): entry(one.token, one.logprob, one.rank)}
        for rank, (token, logprob) in enumerate(one.top[:top], 1):
            found[str(token)] = entry(token, logprob, rank)
        return found

    return [None if one is None else entries(one) for one in prompt]


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt at the beginning of a choice.

    Attributes:
        text: text of the prompt.
        first: first token of the prompt.
    """

    text: str
    first: int


class CompletionLogprobs:
    """Makes `choices[].logprobs` for one choice of a completion, at once or in pieces.

    `text_offset` counts the characters of the choice's text before each token.
    """

    def __init__(self, spelling: TokenSpelling) -> None:
        self._spelling = spelling
        self._decoder = _utf8(errors="replace")
        self._offset = 0

    def of(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """`logprobs` of the choice's next tokens."""
        names: list[str] = []
        logprobs: list[float] = []
        top: list[dict[str, float]] = []
        offsets: list[int] = []
        for item in tokens:
            names.append(token_name(self._spelling, item.token))
            logprobs.append(max(item.logprob, LOWEST))
            top.append(self._top(item.top))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._spelling.token_bytes(item.token)))
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def with_prompt(
        self,
        echo: Echo,
        prompt: Sequence[PromptLogprob | None],
        top: int,
        tokens: Iterable[TokenLogprob],
    ) -> dict[str, Any]:
        """`logprobs` of the prompt and of all tokens of a choice with an echo.

        The result has the `top` likeliest tokens beside each prompt token.
        """
        ids = [echo.first if one is None else one.token for one in prompt]
        of_prompt = {
            "tokens": [token_name(self._spelling, token) for token in ids],
            "token_logprobs": [one and max(one.logprob, LOWEST) for one in prompt],
            "top_logprobs": [one and self._top(one.top[:top]) for one in prompt],
            "text_offset": self._offsets_in(echo.text, ids),
        }
        self._offset = len(echo.text)
        of_output = self.of(tokens)
        return {name: values + of_output[name] for name, values in of_prompt.items()}

    def _offsets_in(self, text: str, tokens: Iterable[int]) -> list[int]:
        """The offset in `text` of each token of a prompt. Some tokens may have no text."""
        decoder, offset, offsets = _utf8(errors="replace"), 0, []
        for token in tokens:
            offsets.append(min(offset, len(text)))
            raw = self._spelling.token_bytes(token)
            if raw:
                offset += len(decoder.decode(raw))
            elif text.startswith(name := self._spelling.token_text(token), offset):
                offset += len(name)
        return offsets

    def _top(self, likeliest: Iterable[tuple[int, float]]) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, logprob in likeliest:
            # Best first: if two tokens have the same name, the likelier token stays.
            top.setdefault(token_name(self._spelling, token), max(logprob, LOWEST))
        return top
