"""Measures how fast steps compute tokens, and estimates when a place in the queue is free."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_DECAY = 0.98
"""Weight of the last step relative to the newest one: about 50 steps count."""
_SOONEST, _LATEST = 1.0, 600.0
"""Bounds of an estimate, in seconds. A client that waits longer than the upper bound gives up."""


class Rate:
    """Tokens per second of recent steps, and the usual length of an output. Not thread-safe.

    Attributes:
        output: mean number of tokens of recent outputs; None before the first output has ended.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self.output: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """Record a step that computed `tokens` tokens in `seconds`."""
        self._tokens = _DECAY * self._tokens + tokens
        self._seconds = _DECAY * self._seconds + seconds

    def observe_output(self, tokens: int) -> None:
        """Record the number of tokens of an output that has ended."""
        self.output = tokens if self.output is None else 0.9 * self.output + 0.1 * tokens

    @property
    def tokens_per_second(self) -> float:
        """Prompt and output tokens that steps compute per second; 0.0 before any step was timed."""
        return self._tokens / self._seconds if self._seconds else 0.0


def retry_after(work: Iterable[float], places: int, tokens_per_second: float) -> float:
    """Estimate the seconds until `places` of the accepted requests have ended.

    All requests share the rate, so one request ends per mean work of a request.

    Args:
        work: tokens that each accepted request still needs, prompt and output.
        places: how many requests must end.
        tokens_per_second: rate of recent steps; 0.0 if it is unknown.

    Returns:
        At least 1 and at most 600; 1 if the rate is unknown.
    """
    tokens = list(work)
    if not tokens or tokens_per_second <= 0.0:
        return _SOONEST
    seconds = places * math.fsum(tokens) / len(tokens) / tokens_per_second
    return min(max(seconds, _SOONEST), _LATEST)
