"""Encodes JSON answers after all choices have ended, and sends them as fast as clients read.

Before the choices end, their deltas wait in the engine's streams. Then the encoded bytes wait here.
The backlog counts both. Log probabilities of one token take 16 kB as objects, so only one large
answer is encoded at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from starlette.responses import Response

from heddle.outputs import Output
from heddle.process_memory import trim_memory
from heddle.server.generate.usage import totals
from heddle.server.http.connection import unless_gone
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from heddle.engine.streaming.streams import AsyncStreams, Backlog
    from heddle.errors import BacklogError
    from heddle.outputs import Delta
    from heddle.server.generate.writer import AnswerWriter

_LARGE = 256 * 1024
"""Smallest large answer, in bytes of deltas: about 10 ms of encoding. A thread encodes it."""
PIECE = 64 * 1024
"""Bytes that a connection gets at once. It takes the next piece after it has sent most of them."""


class JsonAnswers:
    """Makes the JSON answers of one application. Used from its event loop."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._encoding = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, "heddle-encode")

    async def response(
        self, writer: AnswerWriter, receive: Receive, streams: AsyncStreams, n: int
    ) -> Response:
        """Wait until all choices end, and make the response. Each prompt has `n` choices.

        Raises:
            HeddleError: a choice ended with this error. The other choices are cancelled.
            ClientGoneError: the client closed the connection. All choices are cancelled.
        """
        try:
            parts = await unless_gone(receive, self._parts(writer, streams, n))
        finally:
            streams.close()
        return JsonPartsResponse(parts, self._backlog)

    async def _parts(self, writer: AnswerWriter, streams: AsyncStreams, n: int) -> list[bytes]:
        await streams.complete()
        if streams.held < _LARGE:
            return _encoded(writer, await _outputs(streams), n)
        async with self._encoding:  # the backlog counts the deltas while this answer waits
            outputs = await _outputs(streams)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._worker, _encoded_large, writer, outputs, n)


async def _outputs(streams: AsyncStreams) -> list[Output]:
    deltas: list[list[Delta]] = [[] for _ in range(len(streams))]
    async for index, delta in streams:
        deltas[index].append(delta)
    return [Output.of(choice) for choice in deltas]


def _encoded(writer: AnswerWriter, outputs: list[Output], n: int) -> list[bytes]:
    """The JSON of an answer, in parts."""
    last = totals([output.usage for output in outputs], n)
    return writer.json(outputs, last)


def _encoded_large(writer: AnswerWriter, outputs: list[Output], n: int) -> list[bytes]:
    try:
        return _encoded(writer, outputs, n)
    finally:
        trim_memory()


class JsonPartsResponse(Response):
    """A JSON response that is sent part by part. The backlog counts the parts that wait.

    Attributes:
        held: bytes of the parts that are not sent completely.
    """

    def __init__(self, parts: Sequence[bytes], backlog: Backlog) -> None:
        length = sum(map(len, parts))
        super().__init__(headers={"content-length": str(length)}, media_type="application/json")
        self.held = length
        self._failure: BacklogError | None = None
        self._parts = deque(parts if length > PIECE else [b"".join(parts)])
        if length > PIECE:
            backlog.holders.add(self)
            backlog.check()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. A cut answer has no last message, so the server closes the connection."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        while self._parts:
            part = self._parts[0]
            for start in range(0, len(part), PIECE):
                piece = part[start : start + PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                # `send` does not wait while the connection has room. Let other tasks run, and let
                # the server notice a disconnect.
                await asyncio.sleep(0)
                if self._failure is not None:
                    record_of(scope).fail(self._failure)
                    return
            self._parts.popleft()
            self.held -= len(part)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def take(self) -> bytes:
        """Return the whole answer, for a part of another one. The backlog no longer counts it.

        Raises:
            BacklogError: unread answers take too much memory, and this answer is the largest.
        """
        if self._failure is not None:
            raise self._failure
        content = b"".join(self._parts)
        self._parts.clear()
        self.held = 0
        return content

    def cut(self, error: BacklogError) -> None:
        """Send no more. The response has begun, so `error` goes to the log only."""
        self._failure = error
        self._parts.clear()
        self.held = 0
