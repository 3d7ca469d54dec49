"""The receiving ends of requests: a whole output, a blocking iterator, an asyncio iterator.

The engine holds only the sink, which appends and wakes. The iterator holds sink and ticket, so one
that is dropped without being read to the end is finalized at once, and cancels its request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from heddle.embedding import Embedding
from heddle.engine.backlog import delta_bytes
from heddle.errors import EventLoopError, HeddleError
from heddle.types import Output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from queue import SimpleQueue

    from heddle.engine.backlog import Backlog
    from heddle.engine.request import Sink, Ticket
    from heddle.errors import BacklogError
    from heddle.types import Delta

_FEW = 16 * 1024
"""Bytes that a reader may be behind before the backlog is counted: some 50 tokens."""


class Collector:
    """A sink that puts deltas together and wakes its reader once, at the end."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if delta.finish is not None:
            self._done.set()

    def wait(self) -> Output:
        """The whole output, once it is there.

        Raises:
            HeddleError: what the request ended with.
        """
        return Output.of(self._wait())

    def wait_embedding(self) -> Embedding:
        """The embedding, once it is there.

        Raises:
            HeddleError: what the request ended with.
        """
        last = self._wait()[-1]
        assert last.embedding is not None
        assert last.usage is not None
        return Embedding(last.embedding, last.usage)

    def _wait(self) -> list[Delta]:
        self._done.wait()
        error = self._deltas[-1].error
        if error is not None:
            raise error
        return self._deltas


class Stream:
    """Deltas of one request, for a thread that may wait for them.

    The last one has `finish` set. An error the request ends with is raised in its place.
    """

    def __init__(self, deltas: SimpleQueue[Delta], ticket: Ticket) -> None:
        self._deltas = deltas
        self._ticket = ticket
        self._over = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        if self._over:
            raise StopIteration
        delta = self._deltas.get()
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


class AsyncStream:
    """Deltas of one request, for one task of the event loop that made it.

    In another event loop reading raises EventLoopError and changes nothing.

    The last one has `finish` set. An error the request ends with is raised in its place. When the
    task is cancelled while it waits here, so is the request.
    """

    def __init__(self, streams: AsyncStreams) -> None:
        self._streams = streams

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Delta:
        _, delta = await anext(self._streams)
        return delta

    def close(self) -> None:
        """Cancel the request unless its last delta was read. Idempotent, never blocks."""
        self._streams.close()

    async def aclose(self) -> None:
        """As :meth:`close`."""
        self.close()


class AsyncStreams:
    """Deltas of several requests, each with its request's index, in the order of their arrival.

    For one task of the event loop that made it; in another one, reading raises EventLoopError and
    changes nothing.

    The last delta of a request has `finish` set; after
    that of the last request the iteration ends. An error that a request ends with is raised in its
    place and cancels the others. When the task is cancelled while it waits here, so are all.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._unfinished = len(inbox.tickets)  # requests whose last delta was not read

    def __len__(self) -> int:
        """How many requests there are."""
        return len(self._inbox.tickets)

    @property
    def held(self) -> int:
        """Bytes of deltas that wait to be read, about."""
        return self._inbox.held

    def __aiter__(self) -> AsyncStreams:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        self._inbox.check_loop()
        if not self._unfinished:
            raise StopAsyncIteration
        try:
            index, delta = await self._inbox.get()
            if delta.error is not None:
                raise delta.error
        except (HeddleError, asyncio.CancelledError):
            self.close()
            raise
        self._unfinished -= delta.finish is not None
        return index, delta

    async def complete(self) -> None:
        """Wait until reading to the end, or to an error, takes no waiting. Wakes the task once."""
        self._inbox.check_loop()
        try:
            await self._inbox.complete()
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Cancel the requests whose last delta was not read. Idempotent, never blocks."""
        if self._unfinished:
            self._unfinished = 0
            self._inbox.close()

    __del__ = close


class Inbox:
    """Takes the deltas of several requests for one reader, through the mailbox of its event loop.

    Attributes:
        held: bytes of deltas that wait to be read, about.
        tickets: of the requests, once they are accepted.
    """

    def __init__(self, mailbox: Mailbox, backlog: Backlog | None = None) -> None:
        """`backlog` bounds what waits here and in other inboxes; None for no bound."""
        self.held = 0
        self.tickets: Sequence[Ticket] = ()
        self._mailbox = mailbox
        self._backlog = backlog
        self._deltas: deque[tuple[int, Delta]] = deque()
        self._ended = 0  # requests that have
        self._failure: HeddleError | None = None
        self._closed = False
        self._arrival: asyncio.Future[None] | None = None
        self._patient = False  # the reader waits for all to end
        if backlog is not None:
            backlog.watch(self)

    def sink(self, index: int) -> Sink:
        """The sink of one request."""
        return partial(self._mailbox.post, self, index)

    def receive(self, index: int, delta: Delta) -> None:
        """From the event loop."""
        if self._closed:
            self._wake()  # who still waits here learns of it
            return
        self._deltas.append((index, delta))
        self.held += delta_bytes(delta)
        self._ended += delta.finish is not None
        self._failure = self._failure or delta.error
        if not self._patient or self._complete:
            self._wake()
        if self._backlog is not None and self.held > _FEW:
            self._backlog.check()

    def check_loop(self) -> None:
        """Raise EventLoopError in another event loop than the one whose deltas come here."""
        if asyncio.get_running_loop() is not self._mailbox.loop:
            raise EventLoopError(
                "this stream was made in another event loop, and its deltas arrive there; read it"
                " in that one, or call generate in this one"
            )

    async def get(self) -> tuple[int, Delta]:
        """The next delta and its request's index, once it is there.

        Raises:
            RuntimeError: another task waits for it already.
            BacklogError: the deltas that waited here took too much memory.
            StopAsyncIteration: another task has closed it.
        """
        while not self._deltas:
            if self._closed:
                raise self._failure or StopAsyncIteration
            await self._wait(patient=False)
        index, delta = self._deltas.popleft()
        self.held -= delta_bytes(delta)
        return index, delta

    async def complete(self) -> None:
        """Return when all requests have ended, or one has failed, or another task has closed it."""
        while not (self._complete or self._closed):
            await self._wait(patient=True)

    def close(self) -> None:
        """Cancel all requests, drop what is here and what will come.

        From any thread, without a lock: finalizers call it.
        """
        self._closed = True
        self._deltas.clear()
        self.held = 0
        for ticket in self.tickets:
            ticket.cancel()

    def cut(self, error: BacklogError) -> None:
        """As :meth:`close`, and tell the reader why."""
        self._failure = error
        self.close()
        self._wake()

    @property
    def _complete(self) -> bool:
        return self._failure is not None or self._ended == len(self.tickets)

    async def _wait(self, *, patient: bool) -> None:
        if self._arrival is not None and not self._arrival.done():
            raise RuntimeError("another task is reading this stream")
        self._patient = patient
        self._arrival = asyncio.get_running_loop().create_future()
        await self._arrival

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class Mailbox:
    """Carries the deltas of all requests of one event loop, with one wake-up per step at most.

    Waking an event loop writes to a socket: too much for every token of every stream. So sinks
    post, and the engine rings the mailboxes that were posted to when the step is delivered.

    Attributes:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, to_ring: list[Mailbox]) -> None:
        """`to_ring` is the engine's list of mailboxes to ring after this step."""
        self.loop = loop
        self._to_ring = to_ring
        self._posted: deque[tuple[Inbox, int, Delta]] = deque()
        self._woken = False

    def post(self, inbox: Inbox, index: int, delta: Delta) -> None:
        """From the engine thread. Once the loop is closed no one will read, so requests end."""
        if self.loop.is_closed():
            inbox.close()
            return
        if self not in self._to_ring:
            self._to_ring.append(self)
        self._posted.append((inbox, index, delta))

    def ring(self) -> None:
        """Wake the loop unless it is about to look anyway. From the engine thread."""
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # closed since; the next post ends its request
                self.loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # Before looking, not after: what is posted from now on may be missed, so it rings again.
        self._woken = False
        while self._posted:
            inbox, index, delta = self._posted.popleft()
            inbox.receive(index, delta)
