"""Finds requests that have waited too long for their first slot; `loop.py` ends them."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from heddle.engine.requests.request import Request


class Patience:
    """Knows how long each request has waited. Needs the lock of the engine thread.

    Args:
        seconds: the longest wait for a first slot; 0: without limit.

    Attributes:
        waiting: requests to look at, in order of arrival.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.waiting: deque[Request] = deque()

    def change(self, seconds: float) -> None:
        """Change the longest wait."""
        self.seconds = seconds
        if not seconds:
            self.waiting.clear()

    def begin(self, requests: Iterable[Request]) -> None:
        """The requests wait from now on."""
        if self.seconds:
            self.waiting += requests

    def overdue(self) -> Iterator[Request]:
        """The requests that have waited too long. Forgets them, and those that have their slot."""
        oldest = time.perf_counter() - self.seconds
        while self.waiting:
            request = self.waiting[0]
            sequence = request.sequence
            waits = sequence.slot < 0 and sequence.cached_tokens is None and not sequence.ended
            if waits and request.last_token_at > oldest:
                break
            self.waiting.popleft()
            if waits:
                yield request
