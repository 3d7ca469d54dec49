"""What wakes the engine thread, and the cancellations that it wakes for.

Neither takes a lock: finalizers cancel requests, and garbage collection runs them in any thread,
also in one that holds the engine's lock.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue


class Bell:
    """Wakes the one thread that waits for it. No ring is lost."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()  # `put` may interrupt itself

    def ring(self) -> None:
        """Have the next `wait` return, or the one that goes on. From any thread."""
        if self._rings.empty():  # else they would add up while nobody waits
            self._rings.put(None)

    def wait(self, timeout: float | None = None) -> None:
        """Return once the bell has rung since the last wait, or after `timeout` seconds.

        It may return without a reason: look for work again.
        """
        try:
            self._rings.get(timeout=timeout)
        except Empty:
            return


class Cancels:
    """Ids of requests to end. Added from any thread, taken by the engine thread."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._ids: deque[int] = deque()

    def add(self, request_id: int) -> None:
        """End a request, if it has not ended."""
        self._ids.append(request_id)
        self._bell.ring()

    def take(self) -> list[int]:
        """The ids that were added since the last call."""
        return [self._ids.popleft() for _ in range(len(self._ids))]

    def pending(self) -> set[int]:
        """The ids that were not taken yet. From any thread."""
        return set(self._ids.copy())
