"""Blocking readers of deltas: a collector of the complete output, and an iterator.

The engine refers only to the sink; see `streams.py`.
"""

from __future__ import annotations

import threading
import time
from queue import Empty
from typing import TYPE_CHECKING

from heddle.embedding import Embedding
from heddle.errors import DeadlineError
from heddle.outputs import Output

if TYPE_CHECKING:
    from queue import SimpleQueue

    from heddle.engine.requests.request import Ticket
    from heddle.outputs import Delta


class Deadline:
    """How long a reader waits, in seconds from now; 0: without limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left; None: without limit."""
        return max(0.0, self._at - time.monotonic()) if self._seconds else None

    @property
    def error(self) -> DeadlineError:
        """The error after the last second."""
        return DeadlineError(self._seconds)


class Collector:
    """A sink that collects deltas and wakes its reader once, at the end.

    Its reader waits for at most `deadline` seconds since it was made; 0: without limit.
    """

    def __init__(self, deadline: float = 0.0) -> None:
        self._deadline = Deadline(deadline)
        self._deltas: list[Delta] = []
        self._done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if delta.finish is not None:
            self._done.set()

    def wait(self) -> Output:
        """Wait for the complete output.

        Raises:
            DeadlineError: it did not come in time. The request still runs: cancel it.
            HeddleError: the error that the request ended with.
        """
        return Output.of(self._wait())

    def wait_embedding(self) -> Embedding:
        """Wait for the embedding.

        Raises:
            DeadlineError: as for `wait`.
            HeddleError: the error that the request ended with.
        """
        last = self._wait()[-1]
        assert last.embedding is not None
        assert last.usage is not None
        return Embedding(last.embedding, last.usage)

    def _wait(self) -> list[Delta]:
        if not self._done.wait(self._deadline.left):
            raise self._deadline.error
        error = self._deltas[-1].error
        if error is not None:
            raise error
        return self._deltas


class Stream:
    """Blocking iterator over the deltas of one request.

    The last delta has `finish` set. If the request ends with an error, the iterator raises that
    error instead of the last delta. After `deadline` seconds it cancels the request; 0: never.
    """

    def __init__(self, deltas: SimpleQueue[Delta], ticket: Ticket, deadline: float = 0.0) -> None:
        self._deadline = Deadline(deadline)
        self._deltas = deltas
        self._ticket = ticket
        self._over = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        if self._over:
            raise StopIteration
        try:
            delta = self._deltas.get(timeout=self._deadline.left)
        except Empty:
            self.close()
            raise self._deadline.error from None
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
