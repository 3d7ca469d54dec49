"""One streamed completion over HTTP: the request, the answer's bytes and times, and the figures.

While a request runs, the client only records bytes and times. It decodes the bytes afterwards, so
that it does not compete with the server for processor cores.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

from heddle.bench.figures import Stream
from heddle.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers OpenAI's completion requests.

    Attributes:
        name: the server's name in tables and errors.
        url: its address, without `/v1`.
        model: the server's name for its model.
        pid: its process id, if known and on this machine.
        extras: further fields of its requests, so that all servers do the same work: they do not
            stop at an end-of-sequence token, and reuse nothing from earlier prompts.
        key: the API key that it requires; None if it requires no key.
    """

    name: str
    url: str
    model: str
    pid: int | None = None
    extras: Mapping[str, Any] = field(default_factory=lambda: {"ignore_eos": True})
    key: str | None = field(default=None, repr=False)


class Recorder(asyncio.Protocol):
    """Records the arriving bytes and their times, until the server closes the connection.

    Attributes:
        pieces: times and bytes; the last piece is empty and marks the end.
        closed: future that is done at the end.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pieces: list[tuple[float, bytes]] = []
        self.closed: asyncio.Future[None] = loop.create_future()
        self._enough: asyncio.Future[None] = loop.create_future()
        self._wanted = 0

    async def until(self, pieces: int) -> None:
        """Wait for `pieces` pieces or the end, whichever comes first. One caller, one call."""
        self._wanted = pieces
        self._notify()
        await self._enough

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))
        self._notify()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pieces.append((time.perf_counter(), b""))
        if not self.closed.done():
            self.closed.set_result(None)
        self._notify()

    def _notify(self) -> None:
        enough = self.closed.done() or 0 < self._wanted <= len(self.pieces)
        if enough and not self._enough.done():
            self._enough.set_result(None)


class Exchange:
    """A request with its own connection, and its answer. The request is not sent at first.

    Attributes:
        recorder: records the answer.
    """

    def __init__(self, server: Server, prompt: Sequence[int], max_tokens: int) -> None:
        """Make a greedy request. `prompt` is token ids. Needs a running event loop."""
        self.recorder = Recorder()
        self._server = server
        self._max_tokens = max_tokens
        self._client = h11.Connection(h11.CLIENT)
        self._request = _request(self._client, server, prompt, max_tokens)
        self._transport: asyncio.Transport | None = None
        self._sent = 0.0

    async def connect(self) -> None:
        """Open the connection.

        Raises:
            PeerError: the server cannot be reached.
        """
        server, address = self._server, urlsplit(self._server.url)
        secure = address.scheme == "https"
        default = 443 if secure else 80
        try:
            self._transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: self.recorder,
                address.hostname or "",
                address.port or default,
                ssl=secure or None,
            )
        except OSError as error:
            raise PeerError(f"{server.name} cannot be reached at {server.url}: {error}") from error

    def send(self) -> None:
        """Send the request."""
        assert self._transport is not None, "not connected"
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def abort(self) -> None:
        """Close the connection, and drop the rest of the answer."""
        if self._transport is not None:
            self._transport.abort()

    def stream(self) -> Stream:
        """The recorded answer, as times and counts.

        Each piece of text that is not empty is an arrival. If there was no such piece, the last
        event is the only arrival. The server reports the token counts.

        Raises:
            PeerError: the server refused, ended the stream early, or did not generate exactly
                `max_tokens` tokens.
        """
        return _stream(
            self._server, self._sent, self._client, self.recorder.pieces, self._max_tokens
        )


def authorization(key: str | None) -> dict[str, str]:
    """The header that carries an API key; no header without a key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


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
        *authorization(server.key).items(),
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
        raise PeerError(f"{server.name} sent no usage, although stream_options asked for it")
    if usage["completion_tokens"] != max_tokens:
        raise PeerError(
            f"{server.name} generated {usage['completion_tokens']} tokens instead of {max_tokens};"
            " it must support ignore_eos"
        )
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Stream(sent, tuple(texts or [finish]), usage["prompt_tokens"], max_tokens, cached)


def _events(
    server: Server, client: h11.Connection, pieces: Sequence[tuple[float, bytes]]
) -> Iterator[tuple[float, dict[str, Any]]]:
    """The response's server-sent events, each with the time at which it was complete."""
    buffer = b""
    for moment, data in _body(server, client, pieces):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
                try:
                    yield moment, json.loads(line.removeprefix(b"data:"))
                except ValueError as error:
                    raise PeerError(f"{server.name} sent an event that is not JSON") from error


def _body(
    server: Server, client: h11.Connection, pieces: Sequence[tuple[float, bytes]]
) -> Iterator[tuple[float, bytes]]:
    """Pieces of the body of an answer with status 200. If the body ends early, some are missing."""
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
