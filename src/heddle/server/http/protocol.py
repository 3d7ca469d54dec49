"""uvicorn's HTTP protocol, with what it lacks against clients that stall, stop or send no HTTP.

- The head of a request has a time limit: connections that send nothing, or a header now and then,
  would stay for ever, and each takes a file descriptor.
- An answer that is given before the whole body has come closes the connection: nothing limits what
  a client sends afterwards.
- A client may end its side of the connection after its request and still get the answer.
- Bytes that are no HTTP get an error in JSON, with an id.
- A body may not come in very many small chunks: each chunk costs 20 µs in the event loop, and one
  read of a socket may bring 40,000.
- There is a most of connections. At it, those that have waited longest for a request are closed.

What comes after the head has limits of its own: the keep-alive of uvicorn, `body_timeout` and
`send_timeout`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import resource
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from heddle.errors import MalformedHTTPError
from heddle.server.http.encoding import encode
from heddle.server.http.error_shape import error_body
from heddle.server.http.request_id import id_headers, new_request_id

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

log = logging.getLogger(__name__)

_LONGEST_HEAD = 16 * 1024
"""Bytes of a request's head, or of a chunk's."""

_MOST_CONNECTIONS = 4096
"""An idle one takes 5 KB."""

_FREE_CHUNKS = 1000
_BYTES_A_CHUNK = 64
"""Chunks that any body may have, and bytes that allow one more. A read of 256 KB then takes 80 ms
at most."""

_FIRST_PROBE, _LONGEST_PROBE = 0.05, 5.0
"""Seconds until a client that has ended its side is probed, and at most between two probes."""


def most_connections() -> int:
    """How many connections may be open at once: half of the file descriptors at most."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, descriptors // 2)


class Connection(h11.Connection):
    """h11's reader and writer of one connection, which refuses bodies in very many small chunks."""

    _chunks = _bytes = 0

    def next_event(self) -> Any:
        """h11.

        Raises:
            h11.RemoteProtocolError: this is no HTTP, or the body has too many small chunks.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS + self._bytes // _BYTES_A_CHUNK:
                raise h11.RemoteProtocolError(
                    f"{self._chunks:,} chunks bring {self._bytes:,} bytes; send larger chunks"
                )
        return event


class HTTPProtocol(H11Protocol):
    """One connection."""

    HEAD_SECONDS: ClassVar[float] = 30

    _head_timer: asyncio.TimerHandle | None = None
    _probe_timer: asyncio.TimerHandle | None = None
    _waits_since: float = 0
    """When the connection was made or the last answer ended."""
    _ended = False
    """Whether the client has ended its side of the connection."""
    _takes_comments = False
    """Whether the response is server-sent events, and the last one is whole."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """uvicorn."""
        super().__init__(*args, **kwargs)
        self.conn = Connection(h11.SERVER, _LONGEST_HEAD)
        self._application = self.app
        self.app = self._answer

    @property
    def more_may_come(self) -> bool:
        """Whether the client may still be sending what no one will read."""
        return not self._ended and self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio."""
        super().connection_made(LingeringTransport(transport, self))  # type: ignore[arg-type]
        self._waits_since = self.loop.time()
        self._start()
        if len(self.connections) > most_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """asyncio."""
        if self.conn.their_state is h11.ERROR:
            return  # the answer is on its way; h11 would keep all of it
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is there, or was none
            self._stop()
        elif self._head_timer is None:
            self._start()

    def eof_received(self) -> bool:  # type: ignore[override]
        """asyncio. True keeps the connection open for the answer."""
        if self._answering and not self.cycle.more_body:
            self._ended = True
            self._probe_timer = self.loop.call_later(_FIRST_PROBE, self._probe, 2 * _FIRST_PROBE)
            return True
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self.send_400_response("the connection ended within the head")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio."""
        self._stop()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """uvicorn. Begins the next request, if one has come."""
        self._waits_since = self.loop.time()
        super().on_response_complete()
        if self._ended and (self.cycle.response_complete or self.cycle.more_body):
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP. uvicorn calls this from where it handles h11's error."""
        reason = sys.exc_info()[1]
        if self._answering:
            if not self.cycle.more_body:
                return  # bytes after a request that said it was the last
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = getattr(reason, "error_status_hint", 400)
            self._send_error(MalformedHTTPError(f"this is no HTTP/1.1: {reason or msg}"), status)
        self.transport.close()

    @property
    def _is_waiting(self) -> bool:
        """Whether no head of a request has come since the last answer."""
        return not self._answering and self.conn.their_state in (h11.IDLE, h11.DONE)

    def _make_room(self) -> None:
        """Close those that have waited longest for a request: several, as a search takes 1 ms.

        This connection is among those that wait, so that there is always one to close.
        """
        protocols = (one for one in self.connections if isinstance(one, HTTPProtocol))
        open_ones = [one for one in protocols if not one.transport.is_closing()]
        excess = len(open_ones) - most_connections()
        if excess <= 0:
            return  # others are just being closed
        oldest = heapq.nsmallest(
            excess + len(open_ones) // 16,
            (one for one in open_ones if one._is_waiting),
            key=lambda one: one._waits_since,
        )
        for one in oldest:
            one.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Closes the connection after an answer that did not wait for the whole body."""
        is_stream = False

        async def send_and_close(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
                self._takes_comments = is_stream
                if self.conn.their_state is h11.SEND_BODY:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            else:
                self._takes_comments = is_stream and message.get("body", b"").endswith(b"\n\n")
            await send(message)

        await self._application(scope, receive, send_and_close)

    def _send_error(self, error: MalformedHTTPError, status: int) -> None:
        request_id = new_request_id()
        body = encode(error_body(error))
        log.info("%s: %d %s", request_id, status, ascii(error.message))
        headers = [
            *id_headers(request_id),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")

    def _probe(self, delay: float) -> None:
        """Send bytes that mean nothing to a client that has ended its side.

        TCP does not tell a client that still reads from one that has gone. One that has gone
        answers these with a reset, which the next write finds.
        """
        event: h11.Event | None = None
        if self.conn.our_state is h11.SEND_RESPONSE and self.scope["http_version"] == "1.1":
            event = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
        elif self.conn.our_state is h11.SEND_BODY and self._takes_comments:
            event = h11.Data(data=b":\n\n")
        if event is not None and not self.flow.write_paused:
            self.transport.write(self.conn.send(event) or b"")
        following = min(2 * delay, _LONGEST_PROBE)
        self._probe_timer = self.loop.call_later(delay, self._probe, following)

    def _start(self) -> None:
        self._head_timer = self.loop.call_later(self.HEAD_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class LingeringTransport:
    """A transport whose `close` lets a client that is still sending read its answer first.

    A socket that is closed while bytes arrive answers with a reset, and that may take the answer
    out of the client's hands (RFC 9112, 9.6).
    """

    def __init__(self, transport: asyncio.Transport, protocol: HTTPProtocol) -> None:
        """`protocol` knows whether the client may still be sending."""
        self._transport = transport
        self._protocol = protocol
        self._lingers = False

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's."""
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """asyncio."""
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        """asyncio."""
        if self.is_closing() or not self._protocol.more_may_come:
            self._transport.close()
            return
        self._lingers = True
        self._transport.write_eof()
        self._transport.set_protocol(Lingering(self._transport, self._protocol))
        self._transport.resume_reading()


class Lingering(asyncio.Protocol):
    """Drops what comes until the client ends its side, or has sent too much or for too long."""

    SECONDS: ClassVar[float] = 5
    BYTES: ClassVar[int] = 16 << 20  # a body of twice the usual limit

    def __init__(self, transport: asyncio.Transport, before: asyncio.Protocol) -> None:
        """`before` is the protocol to tell of the end."""
        self._transport = transport
        self._before = before
        self._left = self.BYTES
        self._timer = asyncio.get_running_loop().call_later(self.SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """asyncio."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio."""
        self._timer.cancel()
        self._before.connection_lost(exc)
