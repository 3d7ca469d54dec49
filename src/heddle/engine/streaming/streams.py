"""Deltas in an event loop: its mailbox, its streams, and a bound on what is unread.

The engine refers only to the sink. The sink appends a delta and wakes the reader. The engine never
refers to an iterator, or only weakly. So if a caller drops an iterator before its end, Python
finalizes the iterator at once, and the finalizer cancels the request. `blocking.py` has the readers
of programs without an event loop.

The engine finishes a request long before a slow client has read its answer, and some clients never
read. The bound is on memory, not on time: below it, slow clients lose nothing. Above it, the
largest unread answer is cut.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, ref

from heddle.errors import BacklogError, DeadlineError, EventLoopError, HeddleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.engine.requests.request import Sink, Ticket
    from heddle.outputs import Delta

_FEW = 16 * 1024
"""Below this many bytes of unread deltas, streams do not check the backlog: some 50 tokens."""


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
        """Close as :meth:`close` does."""
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
        self._timer: asyncio.TimerHandle | None = None  # of the deadline
        if backlog is not None:
            backlog.holders.add(self)

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
            if self._timer is not None:
                with suppress(RuntimeError):  # another thread, or a closed loop: it fires in vain
                    if asyncio.get_running_loop() is self._mailbox.loop:
                        self._timer.cancel()

    __del__ = close

    def end_after(self, seconds: float) -> None:
        """Cut the streams with DeadlineError if they have not ended after `seconds`.

        The timer refers to them weakly, as sinks do.
        """
        self._timer = self._mailbox.loop.call_later(seconds, _end_late, ref(self), seconds)

    def cut(self, error: HeddleError) -> None:
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
        if self._timer is not None and self._is_complete:
            self._timer.cancel()
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


def _end_late(late: ref[AsyncStreams], seconds: float) -> None:
    if (streams := late()) is not None:
        streams.cut(DeadlineError(seconds))


def _foreign_loop() -> EventLoopError:
    return EventLoopError(
        "this stream belongs to another event loop; read it there, or call generate in this event"
        " loop"
    )


class Mailbox:
    """Carries the deltas of all requests of one event loop, with at most one wake-up per step.

    Waking an event loop writes to a socket. This is too slow for every token of every stream. So
    sinks only post, and once per step, after delivery, the engine wakes the mailboxes in `POSTED`.

    Attributes:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._posted: deque[tuple[ref[AsyncStreams], int, Delta]] = deque()
        self._woken = False

    def post(self, streams: ref[AsyncStreams], index: int, delta: Delta) -> None:
        """Add a delta. The thread that delivers it calls this, and `wake` later.

        If the event loop is closed, nobody can read the delta, and the requests are cancelled.
        """
        if self.loop.is_closed():
            if (readable := streams()) is not None:
                readable.close()
            return
        if self not in POSTED.mailboxes:
            POSTED.mailboxes.append(self)
        self._posted.append((streams, index, delta))

    def wake(self) -> None:
        """Wake the event loop unless it is already woken."""
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


class _Posted(threading.local):
    """The mailboxes to which this thread has posted and that it has still to wake."""

    def __init__(self) -> None:
        self.mailboxes: list[Mailbox] = []


POSTED = _Posted()


class Holder(Protocol):
    """Output that waits for its reader."""

    @property
    def held(self) -> int:
        """Approximate size of the output in bytes."""

    def cut(self, error: BacklogError) -> None:
        """Drop all output, so that `held` is 0. The reader gets the error instead."""


class Backlog:
    """All holders of one event loop, and a bound on their bytes. Used only from this loop.

    Attributes:
        holders: outputs to count as long as they live. A new holder adds itself.
        cut: how many holders have lost their output.
    """

    def __init__(self, most: int) -> None:
        """`most` is the bound in bytes."""
        self.cut = 0
        self._most = most
        self.holders: WeakSet[Holder] = WeakSet()

    @property
    def held(self) -> int:
        """Approximate bytes that all holders hold."""
        return sum(holder.held for holder in self.holders)

    def check(self) -> None:
        """Cut the largest holder if the total is above the bound. Call it when a holder has grown.

        One cut is enough: the largest holder holds at least the bytes that arrived since the total
        was within the bound.
        """
        if self.held <= self._most:
            return
        largest = max(self.holders, key=lambda holder: holder.held)
        error = BacklogError(
            f"unread answers take more than {self._most} bytes, and this answer is the largest"
            " of them. Read it faster, ask for fewer tokens, choices or logprobs, or raise the"
            " setting `backlog`"
        )
        largest.cut(error)
        self.cut += 1


def delta_bytes(delta: Delta) -> int:
    """Approximate bytes of a delta. Measured: 295 without alternatives, 2,685 with 20."""
    size = 300 + sum(120 * len(token.top) for token in delta.tokens)
    size += sum(150 + 120 * len(one.top) for one in delta.prompt_logprobs if one is not None)
    return size if delta.embedding is None else size + 4 * len(delta.embedding)
