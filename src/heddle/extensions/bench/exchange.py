"""One HTTP request on a connection of its own: its bytes, and the bytes and times of the response.

While a request runs, the client only records bytes and times. It decodes the bytes afterwards, so
that it does not compete with the server for processor cores.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

from heddle.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


@dataclass(frozen=True, slots=True)
class Response:
    """A recorded HTTP response.

    Attributes:
        status: the HTTP status.
        pieces: the pieces of the body, with the times at which they arrived.
        complete: whether the whole body arrived.
    """

    status: int
    pieces: tuple[tuple[float, bytes], ...]
    complete: bool

    @property
    def body(self) -> bytes:
        """The whole body, as far as it arrived."""
        return b"".join(data for _, data in self.pieces)


class Exchange:
    """A request with its own connection, and its response. The request is not sent at first.

    Attributes:
        recorder: records the response.
        sent: when the request was sent, in seconds of `time.perf_counter`; 0 before.
    """

    def __init__(self, server: Server, request: bytes) -> None:
        """`request` is the bytes to send; see `post`. Needs a running event loop."""
        self.recorder = Recorder()
        self.sent = 0.0
        self._server = server
        self._request = request
        self._transport: asyncio.Transport | None = None

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

    def send(self, share: float = 1.0) -> None:
        """Send the request, or only the first `share` of its bytes."""
        assert self._transport is not None, "not connected"
        self.sent = time.perf_counter()
        self._transport.write(self._request[: round(share * len(self._request))])

    async def complete(self, seconds: float) -> None:
        """Connect, send the request, and wait for the end of the response.

        Raises:
            PeerError: the server cannot be reached, or the response does not end in `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.connect()
                self.send()
                await self.recorder.closed
        except TimeoutError:
            raise PeerError(f"{self._server.name} did not answer in {seconds:.0f} s") from None
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the connection, and drop the rest of the response."""
        if self._transport is not None:
            self._transport.abort()

    def response(self) -> Response:
        """The recorded response.

        Raises:
            PeerError: the server closed the connection without a response, or does not speak HTTP.
        """
        return _read_response(self._server, self.recorder.pieces)


def authorization(key: str | None) -> dict[str, str]:
    """The header that carries an API key; no header without a key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def post(server: Server, path: str, body: bytes) -> bytes:
    """The bytes of a POST request with a JSON body. The server closes the connection afterwards."""
    address = urlsplit(server.url)
    headers = {
        "Host": address.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **authorization(server.key),
    }
    lines = [f"POST {address.path}{path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _read_response(server: Server, recorded: Sequence[tuple[float, bytes]]) -> Response:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("Host", "h")]))
    client.send(h11.EndOfMessage())
    status, pieces, complete = 0, [], False
    try:
        for moment, data in recorded:
            client.receive_data(data)
            while not isinstance(event := client.next_event(), type):
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    pieces.append((moment, bytes(event.data)))
                elif isinstance(event, h11.EndOfMessage):
                    complete = True
                    break
            if complete:
                break
    except h11.RemoteProtocolError as error:
        if status == 0 and any(data for _, data in recorded):
            raise PeerError(f"{server.name} does not answer in HTTP: {error}") from error
    if status == 0:
        raise PeerError(f"{server.name} closed a connection without an answer")
    return Response(status, tuple(pieces), complete)
