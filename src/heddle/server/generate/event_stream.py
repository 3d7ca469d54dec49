"""Sends the choices of one answer as server-sent events, until they end or the client leaves."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response

from heddle.engine.backlog import delta_bytes
from heddle.errors import HeddleError
from heddle.server.generate.json_answer import PIECE
from heddle.server.generate.usage import totals
from heddle.server.http.connection import ClientGoneError, unless_gone
from heddle.server.http.errors import stopping
from heddle.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

    from heddle.engine.backlog import Backlog
    from heddle.engine.streams import AsyncStreams
    from heddle.errors import BacklogError
    from heddle.server.generate.writer import AnswerWriter
    from heddle.types import Delta, TokenLogprob, Usage

log = logging.getLogger(__name__)


class ChoiceEvents:
    """The events of one choice. Tokens wait until a part of the answer is known.

    Attributes:
        held: about how many bytes of tokens wait. A long answer may have no text at all.
        usage: of the choice, once it has ended.
    """

    def __init__(self, writer: AnswerWriter, index: int) -> None:
        self._writer = writer
        self._index = index
        self._reader = writer.reading.reader()
        self._tokens: list[TokenLogprob] = []
        self.held = 0
        self.usage: Usage | None = None

    def opening(self) -> bytes:
        return self._writer.opening(self._index)

    def events(self, delta: Delta) -> bytes:
        """The events that `delta` completes: none, or parts of the answer, or its end, or both."""
        self._tokens += delta.tokens
        self.held += delta_bytes(delta)
        parts = self._reader.feed(delta.text)
        if delta.finish is not None:
            parts += self._reader.finish(cut=delta.finish is FinishReason.LENGTH)
        events = b""
        for part in parts:
            events += self._writer.part(self._index, part, self._tokens)
            self.forget()
        if delta.finish is not None:
            events += self._writer.closing(self._index, self._tokens, delta)
            self.forget()
            self.usage = delta.usage
        return events

    def forget(self) -> None:
        """Drop the tokens that wait."""
        self._tokens = []
        self.held = 0


class EventStream(Response):
    """Streams an answer whose choices the engine has accepted.

    The backlog counts what the writer keeps for later events, tokens that wait for text, and an
    event that is large.
    """

    def __init__(
        self, writer: AnswerWriter, streams: AsyncStreams, n: int, backlog: Backlog
    ) -> None:
        """Each prompt has `n` choices."""
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._writer = writer
        self._streams = streams
        self._n = n
        self._backlog = backlog
        self._held_at_check = 0
        self._choices = [ChoiceEvents(writer, index) for index in range(len(streams))]
        self._waiting = 0  # bytes that the choices hold; a sum over them at each event is too slow
        self._part = b""
        self._failure: BacklogError | None = None
        backlog.watch(self)

    @property
    def held(self) -> int:
        """Bytes that the writer keeps, of tokens that wait, and of the event that is being sent."""
        sending = len(self._part) if len(self._part) > PIECE else 0
        return self._writer.held + self._waiting + sending

    def cut(self, error: BacklogError) -> None:
        """End with `error` before the next event, or in the middle of a large one, without end."""
        self._failure = error
        self._forget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGoneError:
            log.info("%s: the client went away", self._writer.id)
        except asyncio.CancelledError:  # the server stops and has cancelled this task
            log.info("%s: cancelled", self._writer.id)
            await self._say_last(send)
        finally:
            self._streams.close()
            self._forget()

    async def _say_last(self, send: Send) -> None:
        """End with an error event, unless a large event is incomplete."""
        if len(self._part) <= PIECE:
            last = self._writer.failure(stopping())
            await send({"type": "http.response.body", "body": last, "more_body": False})

    def _forget(self) -> None:
        """Drop all that `held` counts."""
        self._part = b""
        self._waiting = 0
        self._writer.forget()
        for choice in self._choices:
            choice.forget()

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
                        return  # cut: without an end, so that the server closes the connection
                if self._streams.held:  # neither reading nor sending waited: let other tasks run
                    await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        yield b"".join(choice.opening() for choice in self._choices)
        try:
            async for index, delta in self._streams:
                if events := self._counted(self._events_of(index, delta)):
                    yield events
            last = totals([choice.usage for choice in self._choices if choice.usage], self._n)
            yield self._counted(self._writer.ending(last))
            self._writer.log_end(last)
        except HeddleError as error:
            log.info("%s: %s", self._writer.id, error.message)
            yield self._writer.failure(error)

    def _events_of(self, index: int, delta: Delta) -> bytes:
        """The events that `delta` completes of the choice `index`."""
        choice = self._choices[index]
        before = choice.held
        events = choice.events(delta)
        self._waiting += choice.held - before
        return events

    def _counted(self, part: bytes) -> bytes:
        """`part`. Checks the backlog first if `held` has changed much since the last check.

        Raises:
            BacklogError: the answer was cut, now or before.
        """
        self._part = part
        held = self.held
        if abs(held - self._held_at_check) > PIECE:
            self._held_at_check = held
            self._backlog.check()
        if self._failure is not None:
            raise self._failure
        return part
