"""Blocking readers of deltas: a collector of the complete output, and an iterator.

The engine refers only to the sink; see `streams.py`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from heddle.embedding import Embedding
from heddle.outputs import Output

if TYPE_CHECKING:
    from queue import SimpleQueue

    from heddle.engine.requests.request import Ticket
    from heddle.outputs import Delta


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
