"""Sends the choices of an answer as server-sent events until all choices end."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.responses import Response

from heddle.engine.streaming.streams import delta_bytes
from heddle.errors import HeddleError
from heddle.outputs import FinishReason
from heddle.server.generate.json_answer import PIECE
from heddle.server.generate.usage import totals
from heddle.server.http.connection import ClientGoneError, unless_gone
from heddle.server.http.encoding import EVENTS
from heddle.server.http.errors import stopping
from heddle.server.http.record import Continuation, RequestRecord, record_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

    from heddle.engine.streaming.streams import AsyncStreams, Backlog
    from heddle.errors import BacklogError
    from heddle.outputs import Delta, Progress, TokenLogprob, Usage
    from heddle.server.generate.writer import AnswerWriter

_PING = b": waiting\n\n"
"""A comment of server-sent events, which clients skip."""
_PROGRESS_SECONDS = 0.1
"""Seconds between two looks at the progress of a prompt."""


class ChoiceEvents:
    """Turns the deltas of one choice into events. Holds tokens until their part is complete.

    Attributes:
        held: approximate bytes of held tokens. They may be many: a long answer may have no text.
        usage: token counts and times of the choice after its end; None before.
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
        """The events for `delta`: complete parts, and the closing event after the last delta."""
        self._tokens += delta.tokens
        parts = self._reader.feed(delta.text)
        if delta.finish is not None:
            parts += self._reader.finish(cut=delta.finish is FinishReason.LENGTH)
        events = b""
        for part in parts:
            events += self._writer.part(self._index, part, self._tokens)
            self._tokens, self.held = [], 0
        if delta.finish is not None:
            events += self._writer.closing(self._index, self._tokens, delta)
            self._tokens, self.held = [], 0
            self.usage = delta.usage
        if self._tokens:
            self.held += delta_bytes(delta)
        return events

    def discard_tokens(self) -> None:
        """Discard the held tokens."""
        self._tokens, self.held = [], 0


class WaitingEvents:
    """Events of a stream before the first token of each choice: progress, and comments.

    Comments keep proxies and clients from closing a silent connection.
    """

    def __init__(self, writer: AnswerWriter, streams: AsyncStreams, ping: float) -> None:
        """`ping` is the number of seconds between comments; 0: no comments."""
        self._writer = writer
        self._tickets = streams.tickets
        self._ping = ping if writer.media_type == EVENTS else 0.0
        self._shown: dict[int, Progress | None] = {}
        if self._ping or writer.shows_progress:
            self._shown = dict.fromkeys(range(len(streams)))
        self._sent_at = time.monotonic()

    @property
    def pause(self) -> float | None:
        """Seconds until the next events; None after the first token of each choice."""
        if not self._shown:
            return None
        if not self._writer.shows_progress:
            return self._ping
        return min(_PROGRESS_SECONDS, self._ping or _PROGRESS_SECONDS)

    def events(self) -> bytes:
        """Progress since the last call, or a comment if it is time for one."""
        events = b"".join(map(self._progress, self._shown))
        silent = time.monotonic() - self._sent_at
        if not events and self._ping and silent >= self._ping:
            events = _PING
        if events:
            self._sent_at = time.monotonic()
        return events

    def begun(self, index: int) -> bytes:
        """The last progress of a choice. It has a token now."""
        events = self._progress(index) if index in self._shown else b""
        self._shown.pop(index, None)
        return events

    def _progress(self, index: int) -> bytes:
        if not self._writer.shows_progress:
            return b""
        before, now = self._shown[index], self._tickets[index].progress
        if now == before:
            return b""
        self._shown[index] = now
        events = self._writer.progress(index, now)
        if before is None and now.computed_tokens > now.cached_tokens:
            start = replace(now, computed_tokens=now.cached_tokens, prompt_seconds=0.0)
            events = self._writer.progress(index, start) + events  # clients measure from there
        return events


class EventStream(Response):
    """Streams an answer. The engine has already accepted its choices.

    The backlog counts the content that the writer keeps for later events, the tokens that the
    choices hold, and a large event while it is being sent.

    Attributes:
        held: bytes of them all.
    """

    def __init__(
        self,
        writer: AnswerWriter,
        streams: AsyncStreams,
        n: int,
        backlog: Backlog,
        ping: float = 0.0,
        continuation: Continuation | None = None,
    ) -> None:
        """
        Args:
            writer: writes the events.
            streams: the deltas of the choices.
            n: choices of each prompt.
            backlog: counts what the answer holds.
            ping: seconds between comments before the first token; 0: no comments.
            continuation: knows what another process has sent; None: nothing.
        """
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
            media_type=writer.media_type,
        )
        del self.headers["content-length"]
        if continuation is not None:
            continuation.is_stream = True
        self._writer = writer
        self._streams = streams
        self._n = n
        self._continuation = continuation
        self._backlog = backlog
        self._waiting = WaitingEvents(writer, streams, ping)
        self.held = self._held_at_check = 0
        self._choices = [ChoiceEvents(writer, index) for index in range(len(streams))]
        self._held_by_choices = 0  # bytes; a sum over all choices at each event would be too slow
        self._part = b""
        self._failure: BacklogError | None = None
        self._record = RequestRecord()
        backlog.holders.add(self)

    def cut(self, error: BacklogError) -> None:
        """End the stream with `error` as the next event.

        If a large event is being sent, the stream ends inside of it, without an error event.
        """
        self._failure = error
        self._discard_held()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        self._record = record_of(scope)
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGoneError:
            self._record.leave()
        except asyncio.CancelledError:  # the server stops and cancels this task
            self._record.fail(stopping())
            await self._send_stopping(send)
        finally:
            self._record.add(self._streams)
            self._streams.close()
            self._discard_held()

    async def _send_stopping(self, send: Send) -> None:
        """End the stream with an error event, unless a large event is incomplete."""
        if len(self._part) <= PIECE:
            last = self._writer.failure(stopping())
            await send({"type": "http.response.body", "body": last, "more_body": False})

    def _discard_held(self) -> None:
        """Discard all content that `held` counts."""
        self._part = b""
        self.held = self._held_by_choices = 0
        self._writer.discard_held()
        for choice in self._choices:
            choice.discard_tokens()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        send = self._record.send or send  # what the edge adds is sent
        # Another process goes on between two events, not inside of one.
        most = PIECE if self._continuation is None else sys.maxsize
        async with aclosing(self._events()) as parts:
            async for self._part in parts:
                size = len(self._part)
                for start in range(0, size, most):
                    piece = self._part[start : start + most]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if size > PIECE and not self._part:
                        return  # cut; without a last message, the server closes the connection
                if self._streams.held:  # the next delta is there already: let other tasks run first
                    await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        opening = b"".join(choice.opening() for choice in self._choices)
        if self._continuation is None or not self._continuation.begun:
            yield opening
        try:
            while (pause := self._waiting.pause) is not None:
                if not await self._streams.arrives(pause):
                    if events := self._waiting.events():
                        yield events
                    continue
                index, delta = await anext(self._streams)
                events = self._waiting.begun(index) + self._events_of(index, delta)
                yield self._counted(events)
            async for index, delta in self._streams:
                if events := self._counted(self._events_of(index, delta)):
                    yield events
            last = totals([choice.usage for choice in self._choices if choice.usage], self._n)
            if self._continuation is not None:
                self._continuation.complete = True
            yield self._counted(self._writer.ending(last))
        except HeddleError as error:
            self._record.fail(error)
            yield self._writer.failure(error)

    def _events_of(self, index: int, delta: Delta) -> bytes:
        """The events for a delta of choice `index`."""
        choice = self._choices[index]
        before = choice.held
        events = choice.events(delta)
        self._held_by_choices += choice.held - before
        if self._continuation is not None and self._continuation.was_sent(index, delta):
            return b""  # made nevertheless: the next events depend on it
        return events

    def _counted(self, part: bytes) -> bytes:
        """Return `part`. Check the backlog first if `held` has changed much since the last check.

        Raises:
            BacklogError: the backlog has cut this answer, now or before.
        """
        self._part = part
        held = self._held_by_choices
        if self._writer.keeps_content:
            held += self._writer.held
        if len(part) > PIECE:
            held += len(part)
        self.held = held
        if abs(held - self._held_at_check) > PIECE:
            self._held_at_check = held
            self._backlog.check()
        if self._failure is not None:
            raise self._failure
        return part
