"""Percentiles of durations over the last minute, in bounded memory."""

from __future__ import annotations

import math
from itertools import accumulate

_RATIO = 1.1
"""Each bucket is this many times as long as the one before, so a percentile is 5% off at most."""
_LEAST = 1e-4
_BUCKETS = 160  # 100 us to 400 s
_SCALE = 1 / math.log(_RATIO)
_ROWS, _ROW_SECONDS = 12, 5.0
SECONDS = _ROWS * _ROW_SECONDS


class Minute:
    """Counts durations. One thread adds; any thread may read, and may miss the newest one."""

    def __init__(self) -> None:
        self._rows = [[0] * _BUCKETS for _ in range(_ROWS)]
        self._numbers = [-1] * _ROWS  # the five seconds that each row holds

    def add(self, seconds: float, now: float) -> None:
        """Count a duration that ended now."""
        number = int(now / _ROW_SECONDS)
        place = number % _ROWS
        if self._numbers[place] != number:
            self._rows[place], self._numbers[place] = [0] * _BUCKETS, number
        bucket = int(_SCALE * math.log(max(seconds, _LEAST) / _LEAST))
        self._rows[place][min(bucket, _BUCKETS - 1)] += 1

    def percentiles(self, now: float, shares: tuple[float, ...]) -> tuple[float, ...] | None:
        """The durations, in seconds, below which these shares of all are; None if there is none."""
        oldest = int(now / _ROW_SECONDS) - _ROWS + 1
        kept = [
            row for row, number in zip(self._rows, self._numbers, strict=True) if number >= oldest
        ]
        sums = list(accumulate(map(sum, zip(*kept, strict=True)))) if kept else [0]
        if not sums[-1]:
            return None
        ranks = (max(1, math.ceil(share * sums[-1])) for share in shares)
        buckets = (next(i for i, so_far in enumerate(sums) if so_far >= rank) for rank in ranks)
        return tuple(_LEAST * _RATIO ** (bucket + 0.5) for bucket in buckets)
