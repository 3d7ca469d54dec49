"""The receiving ends of requests: a whole output, a blocking iterator, an asyncio iterator.

The engine holds only the sink, which appends and wakes. The iterator holds sink and ticket, so one
that is dropped without being read to the end is finalized at once, and cancels its request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from heddle.types import Output

if TYPE_CHECKING:
    from queue import SimpleQueue

    from heddle.engine.request import Ticket
    from heddle.types import Delta, TokenLogprob


class Collector:
    """A sink that puts deltas together and wakes its reader once, at the end."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[TokenLogprob] = []
        self._last: Delta | None = None
        self._done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self._text.append(delta.text)
        self._tokens += delta.tokens
        if delta.finish is not None:
            self._last = delta
            self._done.set()

    def wait(self) -> Output:
        """The whole output, once it is there.

        Raises:
            HeddleError: what the request ended with.
        """
        self._done.wait()
        last = self._last
        assert last is not None and last.finish is not None and last.usage is not None
        if last.error is not None:
            raise last.error
        return Output("".join(self._text), tuple(self._tokens), last.finish, last.usage)


class _Ending:
    """What both iterators know of the end: read, closed or dropped, it comes once."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._over = False

    def _pass_on(self, delta: Delta) -> Delta:
        self._over = delta.finish is not None
        if delta.error is not None:
            raise delta.error
        return delta

    def close(self) -> None:
        """Cancel the request unless its last delta was read. Idempotent, never blocks."""
        if not self._over:
            self._over = True
            self._ticket.cancel()

    __del__ = close


class Stream(_Ending):
    """Deltas of one request, for a thread that may wait for them.

    The last one has `finish` set. An error the request ends with is raised in its place.
    """

    def __init__(self, deltas: SimpleQueue[Delta], ticket: Ticket) -> None:
        super().__init__(ticket)
        self._deltas = deltas

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        if self._over:
            raise StopIteration
        return self._pass_on(self._deltas.get())


class AsyncStream(_Ending):
    """Deltas of one request, for one task of the event loop that made it.

    The last one has `finish` set. An error the request ends with is raised in its place. When the
    task is cancelled while it waits here, so is the request.
    """

    def __init__(self, inbox: Inbox, ticket: Ticket) -> None:
        super().__init__(ticket)
        self._inbox = inbox

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        try:
            return self._pass_on(await self._inbox.get())
        except asyncio.CancelledError:
            self.close()
            raise

    async def aclose(self) -> None:
        """As :meth:`close`."""
        self.close()


class Inbox:
    """A sink whose deltas reach one reader through the mailbox of its event loop."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._deltas: deque[Delta] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def __call__(self, delta: Delta) -> None:
        """From the engine thread."""
        self._mailbox.post(self, delta)

    def receive(self, delta: Delta) -> None:
        """From the event loop."""
        self._deltas.append(delta)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> Delta:
        """The next delta, once it is there.

        Raises:
            RuntimeError: another task waits for it already.
        """
        while not self._deltas:
            if self._arrival is not None and not self._arrival.done():
                raise RuntimeError("another task is reading this stream")
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._deltas.popleft()


class Mailbox:
    """Carries the deltas of all requests of one event loop, with one wake-up per step at most.

    Waking an event loop writes to a socket: too much for every token of every stream. So sinks
    post, and the engine rings the mailboxes that were posted to when the step is delivered.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, to_ring: list[Mailbox]) -> None:
        """`to_ring` is the engine's list of mailboxes to ring after this step."""
        self._loop = loop
        self._to_ring = to_ring
        self._posted: deque[tuple[Inbox, Delta]] = deque()
        self._woken = False

    def post(self, inbox: Inbox, delta: Delta) -> None:
        """From the engine thread.

        Raises:
            RuntimeError: the loop is closed, so no one will read this.
        """
        if self._loop.is_closed():
            raise RuntimeError("the event loop of this request is closed")
        if self not in self._to_ring:
            self._to_ring.append(self)
        self._posted.append((inbox, delta))

    def ring(self) -> None:
        """Wake the loop unless it is about to look anyway. From the engine thread."""
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # closed since; the next post will say so
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # Before looking, not after: what is posted from now on may be missed, so it rings again.
        self._woken = False
        while self._posted:
            inbox, delta = self._posted.popleft()
            inbox.receive(delta)
