"""How much memory the process may still take, and how much the processor's caches hold."""

from __future__ import annotations

import resource
from pathlib import Path

from heddle.config import parse_size
from heddle.errors import OutOfMemoryError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_STATM = Path("/proc/self/statm")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def available_bytes() -> int:
    """The least of what :func:`_limits` tells; where it tells nothing, a small machine's memory."""
    return min(_limits().values(), default=2 << 30)


def check_memory(model: int, kv_cache: int) -> None:
    """Make sure, before anything is allocated, that so many bytes are there.

    `model` bytes are its weights and the buffers of a step.

    Raises:
        OutOfMemoryError: they are not.
    """
    limits = _limits()
    if not limits or model + kv_cache <= min(limits.values()):
        return
    source = min(limits, key=lambda name: limits[name])
    wanted = f"weights and buffers of {_gigabytes(model)}"
    way_out = (
        "take a smaller model, fewer slots, smaller batch_tokens, or a machine with more memory"
    )
    if kv_cache:
        wanted += f" and a KV cache of {_gigabytes(kv_cache)}"
    if kv_cache and model < limits[source]:
        way_out = "set a smaller kv_cache, or fewer slots or a shorter context, which bound it"
    raise OutOfMemoryError(
        f"{wanted} do not fit {source}, {_gigabytes(limits[source])}: {way_out}",
        param="kv_cache" if kv_cache else "model",
    )


def _limits() -> dict[str, int]:
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
        amounts["what the limit on address space (ulimit -v) leaves"] = max(0, space - mapped)
    return amounts


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"


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
