"""uvicorn's HTTP protocol, with limits on clients that stall, leave or do not send HTTP.

- The head of a request has a time limit. Otherwise connections that send nothing, or now and then a
  header, would stay open for ever, and each needs a file descriptor.
- An answer that is sent before the whole body has arrived closes the connection, because nothing
  limits the bytes that the client sends afterwards.
- A client may end its side of the connection after its request. It still gets the answer.
- Bytes that are not HTTP get an error in JSON with a request id.
- The number of small chunks of a body is limited. Each chunk takes 20 µs in the event loop, and one
  read of a socket may bring 40,000 chunks.
- The number of connections is limited. Above the limit, the server closes the connections that have
  waited longest for a request.

Other limits apply after the head: uvicorn's keep-alive, `body_timeout` and `send_timeout`.
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
from heddle.server.http.access_log import ENDS
from heddle.server.http.encoding import encode
from heddle.server.http.error_shape import error_body
from heddle.server.http.record import id_headers, new_request_id

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

LONGEST_HEAD = 16 * 1024
"""Most bytes of a request's head, or of the head of a chunk."""

_MOST_CONNECTIONS = 4096
"""Most open connections. An idle connection takes 5 KB."""

_FREE_CHUNKS = 1000
_BYTES_A_CHUNK = 64
"""Each body may have `_FREE_CHUNKS` chunks, and one more chunk for each `_BYTES_A_CHUNK` bytes. So
a read of 256 KB takes at most 80 ms."""

_FIRST_PROBE, _LONGEST_PROBE = 0.05, 5.0
"""Seconds before the first probe of a client that has ended its side, and most seconds between two
probes."""


def most_connections() -> int:
    """Most connections that may be open at once: at most half of the file descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, descriptors // 2)


class Connection(h11.Connection):
    """h11's state of one connection. It refuses more than h11 does: see `next_event`."""

    _chunks = _bytes = 0

    def next_event(self) -> Any:
        """h11.

        Raises:
            h11.RemoteProtocolError: the bytes are not HTTP, the head is too long or has two lengths
                of the body, or the body has too many small chunks.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check_head(event)
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS + self._bytes // _BYTES_A_CHUNK:
                raise h11.RemoteProtocolError(
                    f"{self._chunks:,} chunks have only {self._bytes:,} bytes; send larger chunks"
                )
        return event


def _check_head(request: h11.Request) -> None:
    """Refuse what h11 accepts: a long head that arrives at once, and a body with two lengths.

    A proxy that reads the other length sees other requests in the same bytes (RFC 9112, 6.1).
    """
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError(
            "the head has Content-Length and Transfer-Encoding; send one of them"
        )
    length = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
    if length > LONGEST_HEAD:
        raise h11.RemoteProtocolError(
            f"the head has {length:,} bytes; the limit is {LONGEST_HEAD:,}",
            error_status_hint=431,
        )


class HTTPProtocol(H11Protocol):
    """One connection, as uvicorn and asyncio call it."""

    HEAD_SECONDS: ClassVar[float] = 30

    _head_timer: asyncio.TimerHandle | None = None
    _probe_timer: asyncio.TimerHandle | None = None
    _waits_since: float = 0
    """When the connection was made or its last answer ended, by the event loop's clock."""
    _ended = False
    """Whether the client has ended its side of the connection."""
    _takes_comments = False
    """Whether the response is a stream of events whose last event is complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """uvicorn."""
        super().__init__(*args, **kwargs)
        self.conn = Connection(h11.SERVER, LONGEST_HEAD)
        self._application = self.app
        self.app = self._answer

    @property
    def more_may_come(self) -> bool:
        """Whether the client may still send bytes that the server will not read."""
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
            return  # the error is being sent; h11 would store all further bytes
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is complete, or is not HTTP
            self._stop()
        elif self._head_timer is None:
            self._start()

    def eof_received(self) -> bool:  # type: ignore[override]
        """asyncio. True keeps the connection open for the answer. TLS does not allow it."""
        if self._answering and not self.cycle.more_body and self.transport.can_write_eof():
            self._ended = True
            self._probe_timer = self.loop.call_later(_FIRST_PROBE, self._probe, 2 * _FIRST_PROBE)
            return True
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self.send_400_response("the connection ended before the end of the head")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio."""
        self._stop()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """uvicorn. Starts the next request if it has arrived."""
        self._waits_since = self.loop.time()
        super().on_response_complete()
        if self._ended and (self.cycle.response_complete or self.cycle.more_body):
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP. uvicorn calls this while it handles h11's error."""
        reason = sys.exc_info()[1]
        if self._answering:
            if not self.cycle.more_body:
                return  # bytes after a request that has announced the end of the connection
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = getattr(reason, "error_status_hint", 400)
            message = f"the request is not valid HTTP/1.1: {reason or msg}"
            self._send_error(MalformedHTTPError(message), status)
        self.transport.close()

    @property
    def _is_waiting(self) -> bool:
        """Whether the connection waits for the head of a request."""
        return not self._answering and self.conn.their_state in (h11.IDLE, h11.DONE)

    def _make_room(self) -> None:
        """Close the connections that have waited longest for a request.

        A search takes 1 ms, so each call closes several connections. This new connection waits too,
        so there is always a connection to close.
        """
        protocols = (one for one in self.connections if isinstance(one, HTTPProtocol))
        open_ones = [one for one in protocols if not one.transport.is_closing()]
        excess = len(open_ones) - most_connections()
        if excess <= 0:
            return  # enough connections are already closing
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
        """ASGI. Closes the connection if the answer begins before the whole body has arrived."""
        is_stream = is_chunked = False

        async def send_and_close(message: Message) -> None:
            nonlocal is_stream, is_chunked
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
                self._takes_comments = is_stream
                # As other servers spell them: some clients compare names with their case.
                headers = [(name.title(), value) for name, value in headers]
                if self.conn.their_state is h11.SEND_BODY:
                    headers.append((b"connection", b"close"))  # uvicorn looks for this spelling
                message = {**message, "headers": headers}
                await send(message)
                is_chunked = is_stream and self._sends_chunks()
                return
            body = message.get("body", b"")
            self._takes_comments = is_stream and body.endswith(b"\n\n")
            reads = not self.flow.write_paused and not self.cycle.disconnected
            if is_chunked and reads and body and message.get("more_body"):
                # h11 would make the same bytes, and take a sixth of the event loop's time: 79 to 85
                # us a token with 64 streams, 66 to 71 without h11.
                self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            else:
                await send(message)

        await self._application(scope, receive, send_and_close)

    def _sends_chunks(self) -> bool:
        """Whether h11 writes each piece of the body as a chunk, and not as it is or not at all."""
        knows_chunks = self.scope["http_version"] == "1.1"
        return (
            knows_chunks and self.scope["method"] != "HEAD" and self.conn.our_state is h11.SEND_BODY
        )

    def _send_error(self, error: MalformedHTTPError, status: int) -> None:
        request_id = new_request_id()
        body = encode(error_body(error))
        fields = {"event": "request_end", "request_id": request_id, "status": status}
        fields |= {"error": error.message, "error_code": error.code}
        line = f"{request_id}: {status}, {error.message!a}"
        logging.getLogger(ENDS).info("%s", line, extra={"fields": fields})
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
        """Send bytes without meaning to a client that has ended its side of the connection.

        TCP cannot tell a client that still reads from a client that has left. The system of a
        client that has left answers with a reset, and the next write fails.
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
    """A transport that closes only after a client that still sends could read its answer.

    A socket that is closed while bytes arrive sends a reset. A reset may delete the answer before
    the client reads it (RFC 9112, 9.6).
    """

    def __init__(self, transport: asyncio.Transport, protocol: HTTPProtocol) -> None:
        """`protocol` knows whether the client may still send."""
        self._transport = transport
        self._protocol = protocol
        self._lingers = False
        self.write = transport.write  # for each event of a stream

    def __getattr__(self, name: str) -> Any:
        """Forward all other attributes to the transport."""
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
        if self._transport.can_write_eof():  # not over TLS
            self._transport.write_eof()
        self._transport.set_protocol(Lingering(self._transport, self._protocol))
        self._transport.resume_reading()


class Lingering(asyncio.Protocol):
    """Discards bytes until the client ends its side, or until a limit of bytes or time."""

    SECONDS: ClassVar[float] = 5
    BYTES: ClassVar[int] = 16 << 20  # twice the default limit on bodies

    def __init__(self, transport: asyncio.Transport, previous: asyncio.Protocol) -> None:
        """`previous` is the transport's previous protocol. It learns when the connection ends."""
        self._transport = transport
        self._previous = previous
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
        self._previous.connection_lost(exc)
