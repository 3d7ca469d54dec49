"""Loads on a server: streamed completions sent together over HTTP, and when their text came.

The client must not compete with the server for the cores both run on: while a load lasts it only
notes when bytes arrive, and everything is decoded afterwards.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

from heddle.bench.figures import Stream
from heddle.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LOAD_SECONDS = 600.0  # eight long prompts take a slow peer minutes
_ANSWER_SECONDS = 10.0  # of a server that is asked for its models


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers OpenAI's completion requests.

    Attributes:
        name: of the server, in tables and errors.
        url: where it is, without `/v1`.
        model: what it calls its model.
        pid: its process, if that is known and on this machine.
        extras: fields that its requests need beside OpenAI's, so that all servers do the same
            work: no stop at an end-of-sequence token, nothing taken over from an earlier prompt.
    """

    name: str
    url: str
    model: str
    pid: int | None = None
    extras: Mapping[str, Any] = field(default_factory=lambda: {"ignore_eos": True})


def connect(name: str, url: str, model: str | None = None, pid: int | None = None) -> Server:
    """The server at `url`, with or without `/v1`; its first model, unless one is named.

    Raises:
        PeerError: nothing that answers `/v1/models` is there, or it has no such model.
    """
    url = url.rstrip("/").removesuffix("/v1")
    if urlsplit(url).scheme not in {"http", "https"}:
        raise PeerError(f"{name}: {url!r} is no http address")
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=_ANSWER_SECONDS) as answer:
            models = [entry["id"] for entry in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        raise PeerError(f"{name} answered {error.code} to {url}/v1/models") from error
    except (OSError, HTTPException) as error:
        raise PeerError(f"{name} cannot be reached at {url}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(f"{name}: {url}/v1/models is no list of models") from error
    if model is None and not models:
        raise PeerError(f"{name} has no model at {url}/v1/models")
    if model is not None and model not in models:
        raise PeerError(f"{name} has no model {model!r}; it has {', '.join(models)}")
    return Server(name, url, model or models[0], pid)


def complete(server: Server, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Stream]:
    """Send one greedy completion request per prompt (token ids) at once; wait for all.

    An arrival of a stream is a piece of text that is not empty; the finishing event if there was
    none. Token counts are the server's own.

    Raises:
        PeerError: the server could not be reached, refused a request, ended a stream early, or
            generated another number of tokens.
    """
    return asyncio.run(_complete(server, prompts, max_tokens))


class _Recorder(asyncio.Protocol):
    """Keeps what arrives and when, until the server closes the connection."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.closed = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.pieces.append((time.perf_counter(), b""))
        if not self.closed.done():
            self.closed.set_result(None)


async def _complete(
    server: Server, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[Stream]:
    clients = [h11.Connection(h11.CLIENT) for _ in prompts]
    requests = [_request(c, server, p, max_tokens) for c, p in zip(clients, prompts, strict=True)]
    connections = [await _connect(server) for _ in prompts]
    sent = time.perf_counter()
    for (transport, _), request in zip(connections, requests, strict=True):
        transport.write(request)
    recorders = [recorder for _, recorder in connections]
    try:
        await asyncio.wait_for(asyncio.gather(*(r.closed for r in recorders)), _LOAD_SECONDS)
    except TimeoutError:
        raise PeerError(f"{server.name} did not answer in {_LOAD_SECONDS:.0f} s") from None
    finally:
        for transport, _ in connections:
            transport.abort()
    answers = zip(clients, recorders, strict=True)
    return [_stream(server, sent, client, r.pieces, max_tokens) for client, r in answers]


async def _connect(server: Server) -> tuple[asyncio.Transport, _Recorder]:
    address = urlsplit(server.url)
    secure = address.scheme == "https"
    default = 443 if secure else 80
    try:
        return await asyncio.get_running_loop().create_connection(
            _Recorder, address.hostname or "", address.port or default, ssl=secure or None
        )
    except OSError as error:
        raise PeerError(f"{server.name} cannot be reached at {server.url}: {error}") from error


def _request(
    client: h11.Connection, server: Server, prompt: Sequence[int], max_tokens: int
) -> bytes:
    body = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extras,
    }
    data = json.dumps(body).encode()
    address = urlsplit(server.url)
    headers = [
        ("Host", address.netloc),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(data))),
        ("Connection", "close"),
    ]
    target = f"{address.path}/v1/completions"
    head = client.send(h11.Request(method="POST", target=target, headers=headers))
    return b"".join(
        part or b"" for part in (head, client.send(h11.Data(data)), client.send(h11.EndOfMessage()))
    )


def _stream(
    server: Server,
    sent: float,
    client: h11.Connection,
    pieces: Sequence[tuple[float, bytes]],
    max_tokens: int,
) -> Stream:
    texts: list[float] = []
    finish, usage = None, None
    for moment, event in _events(server, client, pieces):
        if "error" in event:
            raise PeerError(f"{server.name} failed: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if choice["text"]:
                texts.append(moment)
            if choice["finish_reason"]:
                finish = moment
    if finish is None:
        raise PeerError(f"{server.name} ended a stream early, after {len(texts)} pieces of text")
    if usage is None:
        raise PeerError(f"{server.name} sent no usage, though stream_options asked for it")
    if usage["completion_tokens"] != max_tokens:
        raise PeerError(
            f"{server.name} generated {usage['completion_tokens']} tokens where {max_tokens} were"
            " asked for, and ignore_eos"
        )
    return Stream(sent, tuple(texts or [finish]), usage["prompt_tokens"], max_tokens)


def _events(
    server: Server, client: h11.Connection, pieces: Sequence[tuple[float, bytes]]
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Server-sent events of the response with the times at which each was complete."""
    buffer = b""
    for moment, data in _body(server, client, pieces):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
                try:
                    yield moment, json.loads(line.removeprefix(b"data:"))
                except ValueError as error:
                    raise PeerError(f"{server.name} sent an event that is no JSON") from error


def _body(
    server: Server, client: h11.Connection, pieces: Sequence[tuple[float, bytes]]
) -> Iterator[tuple[float, bytes]]:
    """Pieces of a good answer's body; what ends too early simply ends."""
    status, body = 0, b""
    try:
        for moment, data in pieces:
            client.receive_data(data)
            while not isinstance(event := client.next_event(), type):
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data) and status == 200:
                    yield moment, bytes(event.data)
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    break
    except h11.RemoteProtocolError as error:
        if status == 0 and any(data for _, data in pieces):
            raise PeerError(f"{server.name} does not answer in HTTP: {error}") from error
    if status == 0:
        raise PeerError(f"{server.name} closed a connection without an answer")
    if status != 200:
        raise PeerError(f"{server.name} answered {status}: {body.decode(errors='replace')}")
