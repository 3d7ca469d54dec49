"""The memory of a torch device: how much there is, and what a step takes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heddle.errors import OutOfMemoryError, StepMemoryError
from heddle.executors.memory import Room, host_room
from heddle.executors.torch.layout import SPLIT
from heddle.executors.torch.tiles import TILE, padded
from heddle.sizes import gigabytes
from heddle.state import Pages, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.config import EngineConfig
    from heddle.state import StateKind

ALLOCATION_ERRORS = (torch.OutOfMemoryError, MemoryError)


def free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that may still be allocated, and all its bytes."""
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused, total


def room_of(device: torch.device, config: EngineConfig) -> Room:
    """The memory that a model may take on a device."""
    if device.type != "cuda":
        return host_room(config)
    free, total = free_and_total(device)
    kept = total - int(config.gpu_memory * total)
    source = f"what gpu_memory {config.gpu_memory} leaves of the free memory of {device}"
    return Room({source: max(0, free - kept)}, 1.0)


def release(device: torch.device) -> None:
    """Give memory back that no tensor uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def attention_bytes(config: EngineConfig, kinds: Sequence[Sequence[StateKind]]) -> int:
    """Approximate bytes that attention takes in a step: keys and values of a split in float32.

    Each tile of queries reads its own, and copies them about six times.
    """
    flat = [kind for of_layer in kinds for kind in of_layer]
    widths = [
        kind.shape.heads * kind.shape.dim for kind in flat if isinstance(kind, Pages | Window)
    ]
    tiles = padded(config.batch_tokens) // TILE + config.slots
    return 4 * 6 * tiles * SPLIT * max(widths, default=0)


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch raised `error` because an allocation failed."""
    # On the processor it is a RuntimeError like others.
    return isinstance(error, ALLOCATION_ERRORS) or "not enough memory" in str(error)


def out_of_memory_at_load(device: torch.device, needed: int, room: Room) -> OutOfMemoryError:
    """The error of a load whose allocation failed. The plan needed `needed` bytes of `room`."""
    return OutOfMemoryError(
        f"an allocation failed on device {device}: the model needs {gigabytes(needed)} with its KV"
        f" cache, and {gigabytes(room.free)} were free. Set a smaller kv_cache, fewer slots or a"
        " shorter context, or take a smaller model",
        param="model",
    )


def out_of_memory_in_step(device: torch.device) -> StepMemoryError:
    """The error of a step whose buffers do not fit the device."""
    return StepMemoryError(
        f"device {device} has no memory left for the step; set a smaller kv_cache, batch_tokens or"
        " fewer slots"
    )
