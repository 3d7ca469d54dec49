"""How fast replicas take requests, and how long those that wait will wait."""

from __future__ import annotations

from collections import deque

_RECENT = 64
"""Requests that the rate is measured with."""
_SOONEST, _LATEST = 1.0, 600.0
"""Bounds of an estimate, in seconds. A client that waits longer than the upper bound gives up."""
_UNKNOWN = 5.0
"""The estimate before any replica has taken a request: the first one may be loading its model."""


class Flow:
    """The requests that replicas took from one ingress. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_RECENT)

    def note(self, now: float) -> None:
        """A replica took a request."""
        self._times.append(now)

    def seconds(self, waiting: int, now: float) -> float:
        """Estimate the seconds until replicas have taken all `waiting` requests.

        At least 1 and at most 600.
        """
        if not self._times:
            return _UNKNOWN
        span = now - self._times[0]  # longer while no replica takes one
        return min(max(waiting * span / len(self._times), _SOONEST), _LATEST)
