"""How much memory the process may still take, and how much the processor's caches hold."""

from __future__ import annotations

from pathlib import Path

from heddle.config import parse_size

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def available_bytes() -> int:
    """Memory the kernel says is available, or what a container limit leaves, if that is less."""
    amounts = [2 << 30]  # where the kernel tells nothing, assume a small machine
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts = [int(line.split()[1]) * 1024]
    limit = _CGROUP / "memory.max"
    if limit.exists() and (most := limit.read_text().strip()).isdecimal():
        amounts.append(max(0, int(most) - _used_in_cgroup()))
    return min(amounts)


def _used_in_cgroup() -> int:
    """Without copies of files: the kernel counts them, and drops them for memory asked for."""
    lines = (_CGROUP / "memory.stat").read_text().splitlines()
    amounts = {name: int(amount) for name, amount in map(str.split, lines)}
    files = amounts["inactive_file"] + amounts["active_file"]
    return int((_CGROUP / "memory.current").read_text()) - files


def cache_bytes() -> int:
    """Size of the largest cache that the first core can use; 0 where the kernel tells nothing."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    return max((parse_size(size) for size in sizes), default=0)
