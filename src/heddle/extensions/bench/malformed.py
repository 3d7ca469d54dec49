"""Requests that every server must refuse with a status from 400 to 499."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from heddle.extensions.bench.answers import COMPLETIONS
from heddle.extensions.bench.exchange import authorization, post

if TYPE_CHECKING:
    from heddle.extensions.bench.exchange import Server

_DEEP = 100_000
_LONG = 200_000  # words: more tokens than a context of 128 Ki holds
_HUGE = 1 << 40  # bytes


def malformed_requests(server: Server) -> dict[str, bytes]:
    """The bytes of one request of each kind, by the name of the kind."""
    bodies = {
        "not JSON": b'{"prompt": "cut of',
        "not UTF-8": b'{"prompt": "\xff\xfe\xfd"}',
        "an array": b"[1, 2, 3]",
        "nested deeply": b"[" * _DEEP,
        "no prompt": _body(server),
        "prompt is an object": _body(server, prompt={"text": "of it"}),
        "max_tokens is a word": _body(server, prompt="so", max_tokens="many"),
        "max_tokens is negative": _body(server, prompt="so", max_tokens=-5),
        "temperature is a word": _body(server, prompt="so", temperature="hot"),
        "token id is unknown": _body(server, prompt=[1 << 30]),
        "prompt is too long": _body(server, prompt="river " * _LONG),
    }
    requests = {kind: post(server, COMPLETIONS, body) for kind, body in bodies.items()}
    return requests | {
        "no such path": post(server, "/v1/no-such-path", _body(server, prompt="so")),
        "body is too large": _head(server, f"Content-Length: {_HUGE}"),
        "length is a word": _head(server, "Content-Length: long"),
        "not HTTP": b"BREW coffee HTCPCP/1.0\r\n\r\n",
    }


def _body(server: Server, **fields: object) -> bytes:
    return json.dumps({"model": server.model, **fields}).encode()


def _head(server: Server, *lines: str) -> bytes:
    """A request that ends after its header."""
    address = urlsplit(server.url)
    headers = {"Host": address.netloc, "Content-Type": "application/json"}
    headers |= authorization(server.key)
    lines = (*(f"{name}: {value}" for name, value in headers.items()), *lines)
    first = f"POST {address.path}{COMPLETIONS} HTTP/1.1"
    return "\r\n".join([first, *lines, "", ""]).encode()
