"""Wakes the engine thread, and collects cancellations for it.

`Wakeup` and `Cancels` take no lock. Finalizers cancel requests, and garbage collection runs
finalizers in any thread, even in a thread that holds the engine's lock.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Wakeup:
    """Wakes one waiting thread. A notification before the wait is not lost."""

    def __init__(self) -> None:
        self._notified: SimpleQueue[None] = SimpleQueue()  # a finalizer may call `put` inside `put`

    def notify(self) -> None:
        """Make the current or the next `wait` return. Any thread may call this."""
        if self._notified.empty():  # one notification is enough until the next wait
            self._notified.put(None)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a notification since the last wait, for at most `timeout` seconds.

        This may also return without a notification: look for work again.
        """
        try:
            self._notified.get(timeout=timeout)
        except Empty:
            return


class Cancels:
    """Ids of requests to end. Any thread adds them; the engine thread takes them.

    Attributes:
        ids: the ids that the engine thread has not taken yet.
    """

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self.ids: deque[int] = deque()

    def add(self, request_id: int) -> None:
        """Ask the engine thread to end a request. No effect if it has ended."""
        self.ids.append(request_id)
        self._wakeup.notify()

    def take(self) -> list[int]:
        """Take the ids added since the last call."""
        return [self.ids.popleft() for _ in range(len(self.ids))]

    def pending(self) -> set[int]:
        """The ids that the engine thread has not taken yet. Any thread may call this."""
        return set(self.ids.copy())


class Calls:
    """Functions that the engine thread calls while no step is in flight. Any thread adds them.

    Attributes:
        waiting: the functions that were not called yet, each with the future of its result.
    """

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self.waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    def add(self, function: Callable[[], T]) -> Future[T]:
        """Let the engine thread call `function`. Returns the future of its result."""
        future: Future[T] = Future()
        self.waiting.append((function, future))
        self._wakeup.notify()
        return future

    def run(self) -> None:
        """Call the functions that were added. What they raise goes to their futures."""
        while self.waiting:
            function, future = self.waiting.popleft()
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    def refuse(self, error: Exception) -> None:
        """Let all futures raise `error`: the engine ends."""
        while self.waiting:
            self.waiting.popleft()[1].set_exception(error)
