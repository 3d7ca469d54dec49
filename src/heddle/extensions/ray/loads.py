"""What a replica reports to Ray's autoscaler."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle.extensions.ray.scaling import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from heddle.engine.observation.telemetry import EngineSnapshot


class Requests:
    """Counts the requests that a replica has, and knows when it last had one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._running = 0
        self._last = clock()

    @property
    def running(self) -> int:
        """Requests that the replica has now."""
        return self._running

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one request while the block runs."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._last = self._clock()

    def idle_seconds(self) -> float:
        """Time since the last request ended, or since the start; 0.0 while there is one."""
        return 0.0 if self._running else self._clock() - self._last


def load_of(engines: Sequence[EngineSnapshot], idle_seconds: float) -> Load:
    """The load of a replica, from snapshots of its engines. They compute in turns."""
    ended = sum(sum(now.finished.values()) for now in engines)
    tokens = sum(now.prompt_tokens + now.generated_tokens for now in engines)
    rates = [now.busy_rate for now in engines if now.busy_rate > 0.0]
    return Load(
        slots=sum(len(now.slots) for now in engines),
        running=sum(now.running for now in engines),
        waiting=sum(now.queue_depth for now in engines),
        waiting_tokens=sum(now.waiting_tokens for now in engines),
        request_tokens=tokens / ended if ended else 0.0,
        tokens_per_second=sum(rates) / len(rates) if rates else 0.0,
        idle_seconds=idle_seconds,
    )
