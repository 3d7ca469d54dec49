"""Readers of deltas: a collector of the complete output, a blocking and an asyncio iterator.

The engine refers only to the sink. The sink appends a delta and wakes the reader. The engine never
refers to an iterator, or only weakly. So if a caller drops an iterator before its end, Python
finalizes the iterator at once, and the finalizer cancels the request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from heddle.embedding import Embedding
from heddle.engine.streaming.backlog import delta_bytes
from heddle.errors import EventLoopError, HeddleError
from heddle.outputs import Output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from queue import SimpleQueue

    from heddle.engine.requests.request import Sink, Ticket
    from heddle.engine.streaming.backlog import Backlog
    from heddle.errors import BacklogError
    from heddle.outputs import Delta

_FEW = 16 * 1024
"""Below this many bytes of unread deltas, streams do not check the backlog: some 50 tokens."""


class Collector:
    """A sink that collects deltas and wakes its reader once, at the end."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if delta.finish is not None:
            self._done.set()

    def wait(self) -> Output:
        """Wait for the complete output.

        Raises:
            HeddleError: the error that the request ended with.
        """
        return Output.of(self._wait())

    def wait_embedding(self) -> Embedding:
        """Wait for the embedding.

        Raises:
            HeddleError: the error that the request ended with.
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
    """Blocking iterator over the deltas of one request.

    The last delta has `finish` set. If the request ends with an error, the iterator raises that
    error instead of the last delta.
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
    """Asyncio iterator over the deltas of one request, for one task of its event loop.

    Reading in another event loop raises EventLoopError and changes nothing.

    The last delta has `finish` set. If the request ends with an error, the iterator raises that
    error instead of the last delta. If the task is cancelled while it waits here, the request is
    cancelled too.
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
    """Asyncio iterator over (index, delta) of several requests, for one task of its event loop.

    Deltas come in the order of their arrival; the index names the request. Reading in another event
    loop raises EventLoopError and changes nothing.

    The last delta of a request has `finish` set. The iteration ends when all requests have ended.
    If a request ends with an error, the iterator raises that error instead of its last delta and
    cancels the other requests. If the task is cancelled while it waits here, all are cancelled too.

    Attributes:
        tickets: tickets of the requests; empty until the engine has accepted them.
        held: approximate bytes of unread deltas.
    """

    def __init__(self, requests: int, mailbox: Mailbox, backlog: Backlog | None = None) -> None:
        """
        Args:
            requests: how many requests there are.
            mailbox: of the event loop that reads the deltas.
            backlog: bounds the unread deltas of this and other streams; None: no bound.
        """
        self.tickets: Sequence[Ticket] = ()
        self.held = 0
        self._mailbox = mailbox
        self._backlog = backlog
        self._requests = requests
        self._unfinished = requests  # requests whose last delta was not read
        self._ended = 0  # requests whose last delta has arrived
        self._deltas: deque[tuple[int, Delta, int]] = deque()  # each with its size in bytes
        self._failure: HeddleError | None = None
        self._closed = False
        self._arrival: asyncio.Future[None] | None = None
        self._patient = False  # whether the reader waits until all requests have ended
        if backlog is not None:
            backlog.watch(self)

    def __len__(self) -> int:
        """Number of requests."""
        return self._requests

    def __aiter__(self) -> AsyncStreams:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        """
        Raises:
            BacklogError: the unread deltas took too much memory.
            RuntimeError: another task already waits for a delta.
            StopAsyncIteration: all deltas were read, or another task has closed the streams.
        """
        if asyncio.get_running_loop() is not self._mailbox.loop:
            raise _foreign_loop()
        if not self._unfinished:
            raise StopAsyncIteration
        try:
            while not self._deltas:
                if self._closed:
                    raise self._failure or StopAsyncIteration
                await self._wait(patient=False)
            index, delta, size = self._deltas.popleft()
            self.held -= size
            if delta.error is not None:
                raise delta.error
        except (HeddleError, asyncio.CancelledError):
            self.close()
            raise
        self._unfinished -= delta.finish is not None
        return index, delta

    async def arrives(self, seconds: float) -> bool:
        """Wait at most `seconds` for a delta. Returns whether the iteration now returns at once.

        If the task is cancelled while it waits here, all requests are cancelled.
        """
        if not (self._deltas or self._closed):
            timer = self._mailbox.loop.call_later(seconds, self._wake)
            try:
                await self._wait_here(patient=False)
            finally:
                timer.cancel()
        return bool(self._deltas) or self._closed

    async def begin(self) -> None:
        """Wait until the first delta has arrived. The iteration still returns it.

        Raises:
            HeddleError: the first delta has this error. All requests are cancelled.
        """
        while not (self._deltas or self._closed):
            await self._wait_here(patient=False)
        error = self._deltas[0][1].error if self._deltas else self._failure
        if error is not None:
            self.close()
            raise error

    async def complete(self) -> None:
        """Wait until all deltas, or an error, have arrived. Wakes the task once."""
        while not (self._is_complete or self._closed):
            await self._wait_here(patient=True)

    def close(self) -> None:
        """Cancel the requests whose last delta was not read. Idempotent, never blocks.

        Any thread may call this. It takes no lock, because finalizers call it.
        """
        if self._unfinished:
            self._unfinished = 0
            self._drop()

    __del__ = close

    def cut(self, error: BacklogError) -> None:
        """Cancel all requests, and raise `error` in the reader."""
        self._failure = error
        self._drop()
        self._wake()

    def sink(self, index: int) -> Sink:
        """The sink of one request. It refers weakly to the streams; see the module."""
        return partial(self._mailbox.post, ref(self), index)

    def receive(self, index: int, delta: Delta) -> None:
        """Take a delta. The event loop calls this."""
        if self._closed:
            self._wake()  # a task that still waits here must see the close
            return
        size = delta_bytes(delta)
        self._deltas.append((index, delta, size))
        self.held += size
        self._ended += delta.finish is not None
        self._failure = self._failure or delta.error
        if not self._patient or self._is_complete:
            self._wake()
        if self._backlog is not None and self.held > _FEW:
            self._backlog.check()

    def _drop(self) -> None:
        """Cancel all requests. Drop unread and later deltas."""
        self._closed = True
        self._deltas.clear()
        self.held = 0
        for ticket in self.tickets:
            ticket.cancel()

    @property
    def _is_complete(self) -> bool:
        return self._failure is not None or self._ended == self._requests

    async def _wait_here(self, *, patient: bool) -> None:
        """Wait as `_wait`, in the right event loop. A cancelled task cancels all requests."""
        if asyncio.get_running_loop() is not self._mailbox.loop:
            raise _foreign_loop()
        try:
            await self._wait(patient=patient)
        except asyncio.CancelledError:
            self.close()
            raise

    async def _wait(self, *, patient: bool) -> None:
        if self._arrival is not None and not self._arrival.done():
            raise RuntimeError("another task is reading this stream")
        self._patient = patient
        self._arrival = self._mailbox.loop.create_future()
        await self._arrival

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def _foreign_loop() -> EventLoopError:
    return EventLoopError(
        "this stream belongs to another event loop; read it there, or call generate in this event"
        " loop"
    )


class Mailbox:
    """Carries the deltas of all requests of one event loop, with at most one wake-up per step.

    Waking an event loop writes to a socket. This is too slow for every token of every stream. So
    sinks only post, and once per step, after delivery, the engine calls `wake` of the mailboxes
    with new deltas.

    Attributes:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, to_wake: list[Mailbox]) -> None:
        """`to_wake` is the engine's list of mailboxes to wake after this step."""
        self.loop = loop
        self._to_wake = to_wake
        self._posted: deque[tuple[ref[AsyncStreams], int, Delta]] = deque()
        self._woken = False

    def post(self, streams: ref[AsyncStreams], index: int, delta: Delta) -> None:
        """Add a delta. The engine thread calls this.

        If the event loop is closed, nobody can read the delta, and the requests are cancelled.
        """
        if self.loop.is_closed():
            if (readable := streams()) is not None:
                readable.close()
            return
        if self not in self._to_wake:
            self._to_wake.append(self)
        self._posted.append((streams, index, delta))

    def wake(self) -> None:
        """Wake the event loop unless it is already woken. The engine thread calls this."""
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop was just closed; the next post cancels
                self.loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # Reset first: the loop may miss deltas posted from now on, so they must wake it again.
        self._woken = False
        while self._posted:
            streams, index, delta = self._posted.popleft()
            if (readable := streams()) is not None:
                readable.receive(index, delta)
