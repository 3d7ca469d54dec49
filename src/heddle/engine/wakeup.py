"""Wakes the engine thread, and collects cancellations for it.

Neither class takes a lock. Finalizers cancel requests, and garbage collection runs finalizers in
any thread, even in a thread that holds the engine's lock.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue


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
    """Ids of requests to end. Any thread adds them; the engine thread takes them."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._ids: deque[int] = deque()

    def add(self, request_id: int) -> None:
        """Ask the engine thread to end a request. No effect if it has ended."""
        self._ids.append(request_id)
        self._wakeup.notify()

    def take(self) -> list[int]:
        """Take the ids added since the last call."""
        return [self._ids.popleft() for _ in range(len(self._ids))]

    def pending(self) -> set[int]:
        """The ids that the engine thread has not taken yet. Any thread may call this."""
        return set(self._ids.copy())
