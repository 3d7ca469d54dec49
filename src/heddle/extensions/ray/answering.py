"""The replica's side: runs the server's application for one exchange, and cuts its answer up.

A stream goes out event by event, with the tokens of the events. Any other answer goes out as a
whole, so that the client has nothing of it if the replica is lost before.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from heddle.extensions.ray.continuation import Continuation
from heddle.extensions.ray.exchange import Piece
from heddle.server.http.record import CONTINUATION, fix_identity

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import ASGIApp, Message, Scope

    from heddle.extensions.ray.exchange import Exchange

_log = logging.getLogger(__name__)

_MOST_WAITING = 1 << 20
"""Bytes of events that wait for the ingress before the application waits, too. What the ingress
does not take then waits in the server's backlog, which has its limit."""


async def answer(
    app: ASGIApp, exchange: Exchange, replica: str, alive_every: float
) -> AsyncGenerator[Piece]:
    """The pieces of an answer. Closing the generator is the client's leaving.

    After `alive_every` seconds without a piece there is an empty one.
    """
    conversation = _Conversation(exchange, replica)
    running = asyncio.create_task(conversation.run(app))
    try:
        while True:
            piece = await conversation.next(alive_every)
            yield piece
            if piece.is_last or piece.failure:
                return
    finally:
        if not conversation.is_complete:
            conversation.leave()
        await asyncio.wait({running})


class _Conversation:
    """One request as the application sees it."""

    def __init__(self, exchange: Exchange, replica: str) -> None:
        self._exchange = exchange
        self._replica = replica
        self._continuation = Continuation(
            exchange.seed,
            {index: list(tokens) for index, tokens in exchange.tokens.items()},
            set(exchange.closed),
            begun=exchange.begun,
        )
        self._body: bytes | None = exchange.body
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._waiting = 0  # bytes of `_parts`
        self._ended = False
        self._broken = False

    @property
    def is_complete(self) -> bool:
        """Whether the application has made all of the answer."""
        return self._ended or self._continuation.complete

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer."""
        exchange = self._exchange
        fix_identity(exchange.seed, exchange.began_at)
        sent = [pair for pair in exchange.headers if pair[0] != b"x-request-id"]
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": exchange.method,
            "scheme": "http",
            "path": exchange.path,
            "raw_path": exchange.path.encode(),
            "query_string": exchange.query,
            "root_path": "",
            "headers": [*sent, (b"x-request-id", exchange.request_id.encode())],
            "client": (exchange.client, 0) if exchange.client else None,
            "server": None,
            CONTINUATION: self._continuation,
        }
        try:
            await app(scope, self._receive, self._send)
        except Exception:  # the response had begun: the edge answers all others
            _log.exception("%s failed", exchange.request_id)
            self._broken = True
        finally:
            self._ended = True
            self._news.set()

    def leave(self) -> None:
        """The client has left."""
        self._gone.set()
        self._room.set()

    async def next(self, seconds: float) -> Piece:
        """The next piece; an empty one after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return Piece(self._replica)
        self._news.clear()
        going_on, failure = self._continuation, ""
        if going_on.failure is not None:
            failure = going_on.failure.code
        elif self._broken:
            failure = "internal_error"
        body, self._parts, self._waiting = b"".join(self._parts), [], 0
        self._room.set()
        start, self._start = self._start, None
        status, headers = 0, ()
        if start is not None and not going_on.begun:
            status, headers = start["status"], tuple(start["headers"])
        tokens, going_on.new_tokens = tuple(going_on.new_tokens), []
        closed, going_on.new_closed = tuple(going_on.new_closed), []
        last = self.is_complete
        return Piece(self._replica, body, status, headers, tokens, closed, last, failure)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._parts.append(message.get("body", b""))
        self._waiting += len(self._parts[-1])
        if self._continuation.is_stream:
            self._news.set()
            while self._waiting > _MOST_WAITING and not self._gone.is_set():
                self._room.clear()
                await self._room.wait()
