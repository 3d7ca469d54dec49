"""Computes figures from the times at which requests were sent and answered.

A load is a set of requests sent at once. The formulas are the same for streams in this process (one
arrival per token) and over HTTP (one arrival per piece of text).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMULAS = {
    "TTFT": "first output - time sent, per request",
    "TPOT": "(last output - first output) / (output tokens - 1), per request",
    "ITL": "gap between one output and the next, over all requests",
    "prompt tok/s": "prompt tokens / (latest first output - time sent)",
    "decode tok/s": "outputs while all requests generate / duration of this phase",
    "request tok/s": "output tokens / (last output - time sent)",
    "floor": "max(bytes to read / read rate, multiply-adds / their peak rate)",
    "overhead": "share of the steps' time without computation",
}
"""The meaning of each figure. The commands print it below the tables."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One answered request. Times are seconds on one clock.

    Attributes:
        sent: when the request was sent.
        arrivals: when each output arrived; at least one.
        prompt_tokens, tokens: length of the prompt and of the output.
        cached_tokens: prompt tokens from the prefix cache; None if the server does not report them.
    """

    sent: float
    arrivals: tuple[float, ...]
    prompt_tokens: int
    tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of some durations, in seconds."""

    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, durations: Sequence[float]) -> Spread:
        """Percentiles by nearest rank: each percentile is a measured duration."""
        ordered = sorted(durations)
        shares = (0.5, 0.95, 0.99)
        p50, p95, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in shares)
        return cls(p50, p95, p99, ordered[-1])


def ttft(streams: Sequence[Stream]) -> Spread:
    """Times to first token."""
    return Spread.of([stream.arrivals[0] - stream.sent for stream in streams])


def latency(streams: Sequence[Stream]) -> Spread:
    """Times from sending to the last output."""
    return Spread.of([stream.arrivals[-1] - stream.sent for stream in streams])


def tpot(streams: Sequence[Stream]) -> Spread:
    """Times per output token. Each stream must have at least two tokens."""
    return Spread.of(
        [(stream.arrivals[-1] - stream.arrivals[0]) / (stream.tokens - 1) for stream in streams]
    )


def itl(streams: Sequence[Stream]) -> Spread:
    """Inter-token latencies. At least one stream must have two arrivals."""
    return Spread.of(
        [later - earlier for stream in streams for earlier, later in pairwise(stream.arrivals)]
    )


def prompt_rate(streams: Sequence[Stream]) -> float:
    """Prompt tokens per second up to the first output of the last stream."""
    begun = max(stream.arrivals[0] for stream in streams)
    seconds = begun - min(stream.sent for stream in streams)
    return sum(stream.prompt_tokens for stream in streams) / seconds


def request_rate(streams: Sequence[Stream]) -> float:
    """Output tokens per second from sending to the last output, prompts included."""
    ended = max(stream.arrivals[-1] for stream in streams)
    seconds = ended - min(stream.sent for stream in streams)
    return sum(stream.tokens for stream in streams) / seconds


def overlap(streams: Sequence[Stream]) -> float:
    """Share of outputs that arrived while all streams ran, without first outputs: 0 to 1."""
    outputs = sum(len(stream.arrivals) - 1 for stream in streams)
    return len(_together(streams)) / outputs if outputs else 0.0


def decode_rates(streams: Sequence[Stream], parts: int = 1) -> list[float]:
    """Outputs per second while all streams run, for `parts` parts with equal numbers of outputs.

    Raises:
        ValueError: the streams did not run at the same time for long enough.
    """
    together = _together(streams)
    if len(together) < parts:
        raise ValueError("the streams did not run at the same time for long enough")
    bounds = [len(together) * part // parts for part in range(parts + 1)]
    begin = max(stream.arrivals[0] for stream in streams)
    marks = [begin, *(together[bound - 1] for bound in bounds[1:])]
    return [
        (after - before) / (until - since)
        for (before, after), (since, until) in zip(pairwise(bounds), pairwise(marks), strict=True)
    ]


def _together(streams: Sequence[Stream]) -> list[float]:
    """Times of outputs while all streams ran, in order.

    This phase begins after the latest first output and ends with the earliest last output.
    """
    begin = max(stream.arrivals[0] for stream in streams)
    end = min(stream.arrivals[-1] for stream in streams)
    arrivals = chain.from_iterable(stream.arrivals for stream in streams)
    return sorted(moment for moment in arrivals if begin < moment <= end)
