"""What the machine can do at most."""

from __future__ import annotations

from heddle import _native
from heddle.executors.cpu.memory import cache_bytes
from heddle.memory import available_bytes
from heddle.roofline import Limits

_SECONDS = 0.3
"""How long each rate is measured."""

_LEAST_BUFFER = 256 << 20
_CACHES = 4
"""How many times the largest cache a buffer holds that is to be read from memory."""


def measure(threads: int, isa: str, weight_bytes: int) -> Limits:
    """Measure with threads of their own; takes seconds. Nothing else should run meanwhile.

    Raises:
        MemoryError: the buffers cannot be allocated.
    """
    runtime = _native.Runtime(threads, isa)
    buffer = max(_LEAST_BUFFER, _CACHES * cache_bytes())
    buffer = min(buffer, available_bytes() // 4)
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
    )
