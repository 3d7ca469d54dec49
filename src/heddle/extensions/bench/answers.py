"""Reads the answers of completion requests, streamed or whole, as texts, times and token counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.errors import PeerError
from heddle.extensions.bench.figures import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.extensions.bench.exchange import Exchange, Response, Server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one completion request.

    Attributes:
        sent: when the request was sent, in seconds.
        text: the generated text, with the reasoning before it if the server separates the two.
        arrivals: when each piece of text that is not empty arrived. If there was no such piece, the
            end of the answer is the only arrival.
        finish_reason: as the server reports it.
        prompt_tokens, tokens, cached_tokens: as the server reports them; None if it does not.
    """

    sent: float
    text: str
    arrivals: tuple[float, ...]
    finish_reason: str
    prompt_tokens: int | None
    tokens: int | None
    cached_tokens: int | None


def completion(server: Server, prompt: object, max_tokens: int, **fields: Any) -> bytes:
    """The JSON body of a greedy, streamed completion request. `fields` replace its fields."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extras,
        **fields,
    }
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def read_answer(server: Server, exchange: Exchange) -> Answer:
    """The recorded answer to a completion request or a chat request.

    Raises:
        PeerError: the server refused, failed, or ended the answer early.
    """
    response = exchange.response()
    if response.status != 200:
        body = response.body.decode(errors="replace")
        raise PeerError(f"{server.name} answered {response.status}: {body}")
    texts: list[str] = []
    arrivals: list[float] = []
    end, reason, usage = 0.0, None, None
    for moment, event in _events(server, response):
        if "error" in event:
            raise PeerError(f"{server.name} failed: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if text := _text(choice):
                texts.append(text)
                arrivals.append(moment)
            if choice.get("finish_reason"):
                end, reason = moment, choice["finish_reason"]
    if reason is None:
        raise PeerError(f"{server.name} ended a stream early, after {len(texts)} pieces of text")
    usage = usage or {}
    return Answer(
        sent=exchange.sent,
        text="".join(texts),
        arrivals=tuple(arrivals or [end]),
        finish_reason=reason,
        prompt_tokens=usage.get("prompt_tokens"),
        tokens=usage.get("completion_tokens"),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
    )


def read_text(server: Server, exchange: Exchange) -> str:
    """The text of an answer, as far as it has arrived before the connection was closed."""
    texts: list[str] = []
    try:
        for _, event in _events(server, exchange.response()):
            texts += [_text(choice) for choice in event.get("choices", ())]
    except PeerError:  # no response, or cut in the middle of an event
        pass
    return "".join(texts)


def read_stream(server: Server, exchange: Exchange, max_tokens: int) -> Stream:
    """The recorded answer of a server that must generate `max_tokens` tokens, as times and counts.

    Raises:
        PeerError: as `read_answer`; or the server did not generate exactly `max_tokens` tokens, or
            sent no usage.
    """
    answer = read_answer(server, exchange)
    if answer.tokens is None or answer.prompt_tokens is None:
        raise PeerError(f"{server.name} sent no usage, although stream_options asked for it")
    if answer.tokens != max_tokens:
        raise PeerError(
            f"{server.name} generated {answer.tokens} tokens instead of {max_tokens};"
            " it must support ignore_eos"
        )
    return Stream(
        answer.sent, answer.arrivals, answer.prompt_tokens, max_tokens, answer.cached_tokens
    )


def _text(choice: dict[str, Any]) -> str:
    """The text of a choice: of a completion, of a chat, or of a part of a streamed chat."""
    if "text" in choice:
        return choice["text"] or ""
    message = choice.get("delta") or choice.get("message") or {}
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return reasoning + (message.get("content") or "")


def _events(server: Server, response: Response) -> Iterator[tuple[float, dict[str, Any]]]:
    """Events of a stream, each with the time at which it was complete; or the whole answer."""
    if response.body.lstrip().startswith(b"{"):
        yield response.pieces[-1][0], _object(server, response.body)
        return
    buffer = b""
    for moment, data in response.pieces:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
                yield moment, _object(server, line.removeprefix(b"data:"))


def _object(server: Server, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise PeerError(f"{server.name} sent an event that is not JSON") from error
    if not isinstance(value, dict) or not ("error" in value or "choices" in value):
        raise PeerError(f"{server.name} sent an event without choices: {text[:200]!r}")
    return value
