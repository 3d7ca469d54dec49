"""The limits of the control groups that this process is in (cgroups of Linux, versions 1 and 2).

A container is a control group. A limit of a group also holds for the groups inside it, so a process
has the limits of its own group and of all ancestors. A file that is missing, that cannot be read or
that holds something else sets no limit.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MOST = 1 << 16
"""Bytes to read of a file at most. The files of the kernel are far smaller."""

_UNLIMITED = 1 << 62
"""Version 1 writes the largest multiple of a page below 2**63 for no limit."""


class MemoryLimit(NamedTuple):
    """A group's limit, and what is left of it, in bytes."""

    limit: int
    left: int


def memory_limits() -> list[MemoryLimit]:
    """The memory limits that hold for this process, the own group's before those of ancestors.

    Cached files do not count as used, because the kernel drops them when memory is needed.
    """
    found = []
    for group in _groups("memory"):
        limit = _number_in(group, "memory.max", "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            used = _number_in(group, "memory.current", "memory.usage_in_bytes") or 0
            left = limit - max(0, used - _cached_bytes(group))
            found.append(MemoryLimit(limit, max(0, left)))
    return found


def cpu_quota() -> float | None:
    """How many processors' time this process may use, by its tightest limit; None: no limit."""
    quotas = [quota for group in _groups("cpu") if (quota := _quota_of(group)) is not None]
    return min(quotas, default=None)


def kernel_text(path: Path) -> str:
    """The text of a small file of the kernel; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return os.fsdecode(file.read(_MOST))
    except (OSError, ValueError):  # ValueError: the path has a NUL
        return ""


def kernel_number(text: str) -> int | None:
    """The whole number that a text of the kernel has; None if it has something else."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _groups(controller: str) -> list[Path]:
    """Folders of the groups of this process that may limit a controller: its own, then ancestors.

    In a container, the path of the own group may be that of the host, where the container sees no
    such folder. The container's limits are then at the mount.
    """
    found = []
    for line in kernel_text(_OWN).splitlines():
        match line.split(":", 2):
            case [_, "", path]:  # version 2 has one mount
                found += _lineage(_MOUNT, path)
            case [_, controllers, path] if controller in controllers.split(","):
                for mount in {controller, controllers}:  # a mount for each, or `cpu,cpuacct`
                    found += _lineage(_MOUNT / mount, path)
    return found


def _lineage(mount: Path, path: str) -> list[Path]:
    """The folders of a group and of its ancestors."""
    parts = PurePosixPath(path).parts[1:]
    if ".." in parts:  # the group is outside of the namespace; its folder would be another's
        parts = ()
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _number_in(group: Path, *names: str) -> int | None:
    """The number in the first of a group's files that has one."""
    numbers = (kernel_number(kernel_text(group / name)) for name in names)
    return next((number for number in numbers if number is not None), None)


def _cached_bytes(group: Path) -> int:
    """Bytes of cached files in a group and in the groups inside it."""
    pairs = [line.partition(" ") for line in kernel_text(group / "memory.stat").splitlines()]
    amounts = {name: kernel_number(amount) or 0 for name, _, amount in pairs}
    # Version 1 has both: `total_` includes the groups inside. Version 2 always includes them.
    return sum(
        amounts.get(f"total_{kind}", amounts.get(kind, 0))
        for kind in ("inactive_file", "active_file")
    )


def _quota_of(group: Path) -> float | None:
    """How many processors' time a group may use: its quota by its period, both in µs."""
    version_1 = [kernel_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    words = kernel_text(group / "cpu.max").split() or version_1
    quota, period = map(kernel_number, words) if len(words) == 2 else (None, None)
    return quota / period if quota and period else None
