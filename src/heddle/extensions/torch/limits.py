"""Measures the rates of a torch device.

The limits of a GPU are the bytes per second that a copy reads and writes, and large products of
bfloat16, because other servers state shares of these. Those of a processor are reads, and products
of float32.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from heddle.extensions.torch.device import device_name
from heddle.extensions.torch.tiles import TILE
from heddle.roofline import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

_BUFFER = 1 << 28
_RUNS, _REPEATS = 5, 8


class Product(NamedTuple):
    """A product of two matrices. Its rate counts as the peak rate of a device.

    Attributes:
        dtype: type of both matrices.
        side: rows and columns of the first matrix.
        columns: columns of the second matrix.
    """

    dtype: torch.dtype
    side: int
    columns: int


PRODUCTS = {
    "cpu": Product(torch.float32, 1024, TILE),
    "cuda": Product(torch.bfloat16, 8192, 8192),
}


def measure(device: torch.device, weight_bytes: int) -> Limits:
    """Measure products, and reads of memory. It takes half a second on a processor."""
    buffer = torch.ones(_BUFFER // 4, device=device)
    weights = buffer[: max(1, min(weight_bytes, _BUFFER) // 4)]
    if device.type == "cuda":
        target = torch.empty_like(buffer)
        seconds = _least_seconds(device, lambda: target.copy_(buffer))
        memory_rate = 2 * buffer.nbytes / seconds
    else:
        memory_rate = buffer.nbytes / _least_seconds(device, buffer.sum)
    dtype, side, columns = PRODUCTS[device.type]
    # An H200 multiplies equal numbers faster (894 TFLOP/s) than random ones (788).
    left = torch.randn(side, side, device=device).to(dtype)
    right = torch.randn(side, columns, device=device).to(dtype)
    name = str(dtype).removeprefix("torch.")
    return Limits(
        threads=torch.get_num_threads(),
        isa=device_name(device),
        multiplication=f"{name} matmul of {columns} tokens",
        multiply_rate=side * side * columns / _least_seconds(device, lambda: left @ right),
        memory_rate=memory_rate,
        memory_buffer=buffer.nbytes,
        weights_rate=max(memory_rate, weights.nbytes / _least_seconds(device, weights.sum)),
    )


def _least_seconds(device: torch.device, work: Callable[[], torch.Tensor]) -> float:
    """The shortest time of some runs. On a GPU, a run repeats the work so that launches overlap."""
    repeats = _REPEATS if device.type == "cuda" else 1
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        for _ in range(repeats):
            result = work()
        result.flatten()[0].item()  # waits
        seconds.append((time.perf_counter() - began) / repeats)
    return max(min(seconds), 1e-9)
