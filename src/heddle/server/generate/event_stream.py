"""Server-sent events: the choices of one answer as they come, until done or the client is gone."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response

from heddle.engine.backlog import delta_bytes
from heddle.errors import HeddleError
from heddle.server.api.openai.completion_writers import totals
from heddle.server.generate.json_answer import PIECE
from heddle.server.http.connection import ClientGoneError, unless_gone
from heddle.server.http.errors import stopping
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

    from heddle.engine.backlog import Backlog
    from heddle.engine.streams import AsyncStreams
    from heddle.errors import BacklogError
    from heddle.server.api.openai.completion_writers import Answer
    from heddle.types import Delta, TokenLogprob, Usage

log = logging.getLogger(__name__)


class ChoiceWriter:
    """The events of one choice. Tokens wait for the part of the answer that they make known.

    Attributes:
        held: bytes of tokens that wait, about: there may be an answer's worth without any text.
        usage: of the choice, once it has ended.
    """

    def __init__(self, answer: Answer, index: int) -> None:
        self._answer = answer
        self._index = index
        self._reader = answer.reading.reader()
        self._tokens: list[TokenLogprob] = []
        self.held = 0
        self.usage: Usage | None = None

    def opening(self) -> bytes:
        return self._answer.opening(self._index)

    def events(self, delta: Delta) -> bytes:
        """What `delta` lets be sent: nothing, or parts of the answer, or its end, or both."""
        self._tokens += delta.tokens
        self.held += delta_bytes(delta)
        parts = self._reader.feed(delta.text)
        if delta.finish is not None:
            parts += self._reader.finish(cut=delta.finish is FinishReason.LENGTH)
        events = b""
        for part in parts:
            events += self._answer.piece(self._index, part, self._tokens)
            self.forget()
        if delta.finish is not None:
            events += self._answer.closing(self._index, self._tokens, delta)
            self.forget()
            self.usage = delta.usage
        return events

    def forget(self) -> None:
        """Let go of the tokens that wait."""
        self._tokens = []
        self.held = 0


class EventStream(Response):
    """Streams an answer whose requests have been accepted.

    A holder of the backlog, for what the answer keeps to say again, for tokens that wait for text,
    and for an event that is large.
    """

    def __init__(self, answer: Answer, streams: AsyncStreams, n: int, backlog: Backlog) -> None:
        """`n` choices belong to each prompt."""
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._answer = answer
        self._streams = streams
        self._n = n
        self._backlog = backlog
        self._looked_at = 0
        self._writers = [ChoiceWriter(answer, index) for index in range(len(streams))]
        self._part = b""
        self._failure: BacklogError | None = None
        backlog.watch(self)

    @property
    def held(self) -> int:
        """Bytes that the answer keeps, of tokens that wait, and of an event that is being sent."""
        waiting = sum(writer.held for writer in self._writers)
        return self._answer.held + waiting + (len(self._part) if len(self._part) > PIECE else 0)

    def cut(self, error: BacklogError) -> None:
        """End with `error` in place of the next event, or amid a large one without an end."""
        self._failure = error
        self._forget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGoneError:
            log.info("%s: the client went away", self._answer.id)
        except asyncio.CancelledError:  # by the server, which stops and waits no longer
            log.info("%s: cancelled", self._answer.id)
            await self._say_last(send)
        finally:
            self._streams.close()
            self._forget()

    async def _say_last(self, send: Send) -> None:
        """End with an error, unless the end would come amid a large event."""
        if len(self._part) <= PIECE:
            last = self._answer.failure(stopping())
            await send({"type": "http.response.body", "body": last, "more_body": False})

    def _forget(self) -> None:
        """Let go of all that is held."""
        self._part = b""
        self._answer.forget()
        for writer in self._writers:
            writer.forget()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._events()) as parts:
            async for self._part in parts:
                size = len(self._part)
                for start in range(0, size, PIECE):
                    piece = self._part[start : start + PIECE]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if size > PIECE and not self._part:
                        return  # cut amid it: without an end, so that the connection closes
                if self._streams.held:  # neither reading nor sending waited, so others may now
                    await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        yield b"".join(writer.opening() for writer in self._writers)
        try:
            async for index, delta in self._streams:
                if events := self._counted(self._writers[index].events(delta)):
                    yield events
            last = totals([writer.usage for writer in self._writers if writer.usage], self._n)
            yield self._counted(self._answer.ending(last))
            self._answer.log_end(last)
        except HeddleError as error:
            log.info("%s: %s", self._answer.id, error.message)
            yield self._answer.failure(error)

    def _counted(self, part: bytes) -> bytes:
        """`part`, after the backlog has looked if there is much more or less than when it last did.

        Raises:
            BacklogError: the answer was cut, now or before.
        """
        self._part = part
        held = self.held
        if abs(held - self._looked_at) > PIECE:
            self._looked_at = held
            self._backlog.check()
        if self._failure is not None:
            raise self._failure
        return part
