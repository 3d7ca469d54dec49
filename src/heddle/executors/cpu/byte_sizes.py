"""Sizes of packed weights, and of the processor's caches."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from heddle import _native
from heddle.sizes import parse_size

if TYPE_CHECKING:
    from heddle.weights.tensor_types import TensorType

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def packed_bytes(shape: tuple[int, ...], kind: TensorType) -> int:
    """Bytes of a tensor in memory. The types IQ1 to IQ3 take more there than in a file."""
    in_memory = {number: size for _, number, _, _, size, _ in _native.tensor_types()}
    return prod(shape) // kind.block_elements * in_memory.get(int(kind), kind.block_bytes)


def cache_bytes() -> int:
    """Bytes of the largest cache that the first core can use; 0 if the kernel does not tell."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    return max((parse_size(size) for size in sizes), default=0)
