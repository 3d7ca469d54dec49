"""Measures the rates of a torch device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from heddle.executors.torch.device import device_name
from heddle.executors.torch.tiles import TILE
from heddle.roofline import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

_BUFFER = 1 << 28
_SIDE = 1024
_RUNS = 5


def measure(device: torch.device, weight_bytes: int) -> Limits:
    """Measure float32 matmuls of `TILE` tokens, and reads of memory."""
    buffer = torch.ones(_BUFFER // 4, device=device)
    weights = buffer[: max(1, min(weight_bytes, _BUFFER) // 4)]
    left, right = torch.ones(_SIDE, _SIDE, device=device), torch.ones(_SIDE, TILE, device=device)
    memory_rate = buffer.nbytes / _least_seconds(buffer.sum)
    return Limits(
        threads=torch.get_num_threads(),
        isa=device_name(device),
        multiplication=f"float32 matmul of {TILE} tokens",
        multiply_rate=_SIDE * _SIDE * TILE / _least_seconds(lambda: left @ right),
        memory_rate=memory_rate,
        memory_buffer=buffer.nbytes,
        weights_rate=max(memory_rate, weights.nbytes / _least_seconds(weights.sum)),
    )


def _least_seconds(work: Callable[[], torch.Tensor]) -> float:
    """The shortest time of some runs, each of which waits for the device."""
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        work().flatten()[0].item()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)
