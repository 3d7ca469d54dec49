"""Measures the limits of this machine."""

from __future__ import annotations

from heddle import _native
from heddle.executors.cpu.byte_sizes import cache_bytes
from heddle.process_memory import available_bytes
from heddle.roofline import Limits

_SECONDS = 0.3
"""Seconds for which each rate is measured."""

_LEAST_BUFFER = 256 << 20
_CACHES = 4
"""Least size of the buffer for reads from memory, as a multiple of the largest cache."""


def memory_rate(threads: int) -> float:
    """Bytes that `threads` new threads read from memory per second.

    Raises:
        MemoryError: the buffer cannot be allocated.
    """
    return _native.Runtime(threads, "auto").read_rate(_memory_buffer(), _SECONDS / 3)


def _memory_buffer() -> int:
    """Bytes of a buffer to read from memory: far more than the caches hold, if there is memory."""
    return min(max(_LEAST_BUFFER, _CACHES * cache_bytes()), available_bytes() // 4)


def measure(threads: int, isa: str, weight_bytes: int, barriers: int) -> Limits:
    """Measure the limits in new threads. Takes seconds; nothing else should run during it.

    A step reads `weight_bytes` and has so many `barriers`.

    Raises:
        MemoryError: the buffers cannot be allocated.
    """
    runtime = _native.Runtime(threads, isa)
    buffer = _memory_buffer()
    multiply_rate = runtime.multiply_rate(_SECONDS)
    memory_rate = runtime.read_rate(buffer, _SECONDS)
    small = weight_bytes < buffer
    weights_rate = runtime.read_rate(weight_bytes, _SECONDS) if small else memory_rate
    return Limits(
        threads=threads,
        isa=runtime.isa,
        multiplication=runtime.multiplication,
        multiply_rate=multiply_rate,
        memory_rate=memory_rate,
        memory_buffer=buffer,
        weights_rate=max(weights_rate, memory_rate),
        barriers=barriers,
        barrier_seconds=runtime.barrier_seconds(),
    )
