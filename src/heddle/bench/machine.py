"""Describes the machine of a measurement, and other work on the machine."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.cores import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable

_FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "amx_int8")


def describe(*packages: str) -> dict[str, Any]:
    """CPU model, usable cores, relevant instruction sets, memory, system, and versions.

    The versions are of `packages`; None for a package that is not installed.
    """
    fields = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        first = cpuinfo.read_text().split("\n\n", 1)[0]
        fields = {k.strip(): v.strip() for k, _, v in (x.partition(":") for x in first.split("\n"))}
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": usable_cores(),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


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
