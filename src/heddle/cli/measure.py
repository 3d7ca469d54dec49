"""From clock readings of a benchmark's requests to its figures."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.errors import HeddleError
    from heddle.types import Delta

FORMULAS = {
    "TTFT": "first output - sent, per request",
    "TPOT": "(last output - first output) / (output tokens - 1), per request",
    "ITL": "gap between one output and the next, of all requests together",
    "prompt tok/s": "prompt tokens of a round / (its last first output - sent)",
    "decode tok/s": "tokens after a round's last first output / time from there to its last output",
}
"""What the figures mean, in the words that are printed beside them. Rates are of all rounds."""


@dataclass(slots=True)
class Timeline:
    """One request's clock readings in seconds: when it was sent, when each token came."""

    sent: float = 0.0
    tokens: list[float] = field(default_factory=list)
    error: HeddleError | None = None
    _finished: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """The request is about to be sent."""
        self.sent = time.perf_counter()

    def record(self, delta: Delta) -> None:
        """A sink for the engine: notes the time of every token."""
        now = time.perf_counter()
        self.tokens += [now] * len(delta.tokens)
        if delta.finish is not None:
            self.error = delta.error
            self._finished.set()

    def wait(self) -> None:
        """Return when the request has ended.

        Raises:
            HeddleError: it ended with an error.
        """
        self._finished.wait()
        if self.error is not None:
            raise self.error


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of some durations, in seconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, durations: Sequence[float]) -> Spread:
        """Percentiles by nearest rank, so that each is a duration that occurred."""
        ordered = sorted(durations)
        p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
        return cls(p50, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of a benchmark. Rates in tokens a second, see :data:`FORMULAS`."""

    streams: int
    prompt_rate: float
    decode_rate: float
    ttft: Spread
    tpot: Spread
    itl: Spread

    def as_dict(self) -> dict[str, Any]:
        """For JSON, units in the names."""
        return {
            "streams": self.streams,
            "prompt_tokens_per_second": self.prompt_rate,
            "decode_tokens_per_second": self.decode_rate,
            "ttft_seconds": asdict(self.ttft),
            "tpot_seconds": asdict(self.tpot),
            "itl_seconds": asdict(self.itl),
        }


def figures(rounds: Sequence[Sequence[Timeline]], prompt_tokens: int) -> Figures:
    """The row of some rounds of equally many requests, each of at least two tokens."""
    requests = [request for one in rounds for request in one]
    prompt_time = decode_time = 0.0
    decoded = 0
    for one in rounds:
        all_started = max(request.tokens[0] for request in one)
        ended = max(request.tokens[-1] for request in one)
        prompt_time += all_started - min(request.sent for request in one)
        decode_time += ended - all_started
        decoded += sum(1 for request in one for moment in request.tokens if moment > all_started)
    return Figures(
        streams=len(rounds[0]),
        prompt_rate=len(requests) * prompt_tokens / prompt_time,
        decode_rate=decoded / decode_time,
        ttft=Spread.of([request.tokens[0] - request.sent for request in requests]),
        tpot=Spread.of(
            [
                (request.tokens[-1] - request.tokens[0]) / (len(request.tokens) - 1)
                for request in requests
            ]
        ),
        itl=Spread.of(
            [
                later - earlier
                for request in requests
                for earlier, later in zip(request.tokens, request.tokens[1:], strict=False)
            ]
        ),
    )
