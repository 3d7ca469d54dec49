"""How much memory the process may still take, as the system tells it."""

from __future__ import annotations

import resource
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_STATM = Path("/proc/self/statm")

_UNTOUCHED = 512 << 20
"""Address space that stacks of threads and the allocator's arenas reserve. Most of it takes no
memory. Without it `ulimit -v` would seem to leave room that a server does not have: one of
SmolLM2 maps 970 MB, 250 of them its weights and a KV cache of 128 MB."""


def available_bytes() -> int:
    """The least of what :func:`memory_limits` tells; where it tells nothing, 2 GB."""
    return min(memory_limits().values(), default=2 << 30)


def memory_limits() -> dict[str, int]:
    """Bytes the process may still take by each limit that the system tells, with a name for it."""
    amounts = {}
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts["the memory that is available"] = int(line.split()[1]) * 1024
    limit = _CGROUP / "memory.max"
    if limit.exists() and (most := limit.read_text().strip()).isdecimal():
        amounts["what the container's limit leaves"] = max(0, int(most) - _used_in_cgroup())
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and _STATM.exists():
        mapped = int(_STATM.read_text().split()[0]) * resource.getpagesize()
        amounts["what the limit on address space (ulimit -v) leaves"] = max(
            0, space - mapped - _UNTOUCHED
        )
    return amounts


def _used_in_cgroup() -> int:
    """Without copies of files: the kernel counts them, and drops them for memory asked for."""
    lines = (_CGROUP / "memory.stat").read_text().splitlines()
    amounts = {name: int(amount) for name, amount in map(str.split, lines)}
    files = amounts["inactive_file"] + amounts["active_file"]
    return int((_CGROUP / "memory.current").read_text()) - files
