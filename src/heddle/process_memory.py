"""How much more memory the process may allocate, as the system reports it; and how to free some."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from heddle import cgroups
from heddle.executor import DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

_UNTOUCHED = 512 << 20
"""Bytes of address space to keep free for thread stacks and the allocator's arenas, under a limit
on address space (`ulimit -v`). Most of these bytes take no memory, but they count for the limit. A
server of SmolLM2 maps 970 MB. Its weights and its KV cache (128 MB) take 250 MB of them."""


def available_bytes() -> int:
    """The lowest limit of :func:`memory_limits`; 2 GiB if the system reports no limit."""
    return min(memory_limits().values(), default=2 << 30)


def machine_memory() -> DeviceMemory | None:
    """The memory of this machine, or of its container; None if the system does not report it."""
    totals = [group.limit for group in cgroups.memory_limits()]
    if (installed := _meminfo("MemTotal")) is not None:
        totals.append(installed)
    return DeviceMemory(available_bytes(), min(totals)) if totals else None


def memory_limits() -> dict[str, int]:
    """Bytes that the process may still allocate under each limit of the system, by limit.

    Keys are descriptions of the limits for error messages.
    """
    amounts = {}
    if (available := _meminfo("MemAvailable")) is not None:
        amounts["the available memory"] = available
    if groups := cgroups.memory_limits():
        left = min(group.left for group in groups)
        amounts["the memory left under the container's limit"] = left
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and _STATM.exists():
        mapped = int(_STATM.read_text().split()[0]) * resource.getpagesize()
        amounts["the address space left under ulimit -v"] = max(0, space - mapped - _UNTOUCHED)
    return amounts


def trim_memory() -> None:
    """Return the allocator's free memory to the system. Call this after large allocations.

    glibc keeps free memory: after some minutes of large bodies it held 2.2 GB, and only 40 MB of
    them were in use.
    """
    if _trim is not None:
        _trim(0)


def reclaim_memory() -> None:
    """Free objects that only refer to each other, and return the free memory to the system.

    Call this after large objects are dropped. Python counts objects, not bytes: without this call,
    it found a dropped model only after some more had been dropped. All threads stop meanwhile: for
    120 ms in a server with SmolLM2.
    """
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # else the objects of a model that was loaded at the start would stay for ever
    gc.collect()
    if frozen:
        gc.freeze()
    trim_memory()


@contextmanager
def frozen_start() -> Iterator[None]:
    """Collect no garbage during a start, and leave all objects that exist at its end out of later
    collections: code and tables of imported modules, and the objects of models.

    A start is 0.1 s faster, because it makes a million objects that stay.
    """
    gc.disable()
    try:
        yield
        gc.freeze()  # before the next line, which begins a collection of all that is not frozen
    finally:
        gc.enable()


def _meminfo(name: str) -> int | None:
    """The bytes that the kernel reports under a name; None if it does not."""
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
