"""Wakes the engine thread, and collects cancellations for it.

Neither class takes a lock. Finalizers cancel requests, and garbage collection runs finalizers in
any thread, also in a thread that holds the engine's lock.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue


class Bell:
    """Wakes the one thread that waits for it. No ring is lost."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()  # `put` may interrupt itself

    def ring(self) -> None:
        """Make the current or the next `wait` return. Any thread may call this."""
        if self._rings.empty():  # else rings would add up while no thread waits
            self._rings.put(None)

    def wait(self, timeout: float | None = None) -> None:
        """Return once the bell has rung since the last wait, or after `timeout` seconds.

        It may also return without a ring: look for work again.
        """
        try:
            self._rings.get(timeout=timeout)
        except Empty:
            return


class Cancels:
    """Ids of requests to end. Any thread adds them; the engine thread takes them."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._ids: deque[int] = deque()

    def add(self, request_id: int) -> None:
        """Ask the engine thread to end a request. No effect if it has ended."""
        self._ids.append(request_id)
        self._bell.ring()

    def take(self) -> list[int]:
        """Take the ids added since the last call."""
        return [self._ids.popleft() for _ in range(len(self._ids))]

    def pending(self) -> set[int]:
        """The ids that the engine thread has not taken yet. Any thread may call this."""
        return set(self._ids.copy())
