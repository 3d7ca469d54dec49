"""How much memory the process may still take, and how much the processor's caches hold."""

from __future__ import annotations

from pathlib import Path

from heddle.config import parse_size

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def available_bytes() -> int:
    """Memory the kernel says is available, or what a container limit leaves, if that is less."""
    amounts = [2 << 30]  # where the kernel tells nothing, assume a small machine
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts = [int(line.split()[1]) * 1024]
    if _CGROUP_LIMIT.exists() and _CGROUP_USED.exists():
        limit = _CGROUP_LIMIT.read_text().strip()
        if limit.isdecimal():
            amounts.append(max(0, int(limit) - int(_CGROUP_USED.read_text())))
    return min(amounts)


def cache_bytes() -> int:
    """Size of the largest cache that the first core can use; 0 where the kernel tells nothing."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    return max((parse_size(size) for size in sizes), default=0)
