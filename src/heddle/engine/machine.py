"""Measures this machine before a model is loaded."""

from __future__ import annotations

from heddle.cores import usable_cores


def memory_rate() -> float:
    """Bytes that all usable cores together read from memory per second. Takes 0.3 s.

    Raises:
        MemoryError: the buffer cannot be allocated.
    """
    from heddle.executors.cpu.limits import memory_rate

    return memory_rate(usable_cores())
