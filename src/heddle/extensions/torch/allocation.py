"""Allocations of a torch device that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.errors import OutOfMemoryError, StepMemoryError
from heddle.sizes import gigabytes

if TYPE_CHECKING:
    from heddle.executors.memory_plan import Room

_ERRORS = (torch.OutOfMemoryError, MemoryError)


def release(device: torch.device) -> None:
    """Give memory back that no tensor uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch raised `error` because an allocation failed."""
    # On the processor it is a RuntimeError like others.
    return isinstance(error, _ERRORS) or "not enough memory" in str(error)


def out_of_memory_at_load(device: torch.device, needed: int, room: Room) -> OutOfMemoryError:
    """The error of a load whose allocation failed. The plan needed `needed` bytes of `room`."""
    return OutOfMemoryError(
        f"an allocation failed on device {device}: the model needs {gigabytes(needed)} with its KV"
        f" cache, and {gigabytes(room.free)} were free. Set a smaller kv_cache, fewer slots or a"
        " shorter context, or take a smaller model",
        param="model",
    )


def out_of_memory_in_step(who: str) -> StepMemoryError:
    """The error of a step whose buffers do not fit the memory of a device or a rank."""
    return StepMemoryError(
        f"{who} has no memory left for the step; set a smaller kv_cache, batch_tokens or fewer"
        " slots"
    )
