"""The number of cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores on which the system lets this process run; all cores if it has no such limit."""
    if hasattr(os, "sched_getaffinity"):  # Linux has it, macOS does not
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
