"""Measures what other processes and other virtual machines take of this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class OtherWork:
    """Measures the CPU time of other processes and of other virtual machines.

    It needs /proc. Without /proc, the share is unknown.
    """

    def __init__(self, taking_part: Iterable[int] = ()) -> None:
        """Do not count this process and the processes in `taking_part`."""
        self._processes = [Path(f"/proc/{pid}/stat") for pid in taking_part]
        self._start = time.perf_counter(), self._seconds()

    def share(self) -> float | None:
        """Share of the machine that other work took since construction: 0 to 1; None if unknown."""
        before, now = self._start[1], self._seconds()
        if before is None or now is None:
            return None
        wall = time.perf_counter() - self._start[0]
        return max(0.0, (now - before) / (wall * (os.cpu_count() or 1)))

    def _seconds(self) -> float | None:
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        times = _ticks(stat.read_text().split()[1:9])
        user, nice, system, _idle, _iowait, irq, softirq, stolen = times
        ours = sum(
            sum(_ticks(path.read_text().rpartition(")")[2].split()[11:13]))  # utime and stime
            for path in self._processes
        )
        return user + nice + system + irq + softirq + stolen - ours - time.process_time()


def _ticks(fields: list[str]) -> list[float]:
    """Seconds from the kernel's clock ticks."""
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
