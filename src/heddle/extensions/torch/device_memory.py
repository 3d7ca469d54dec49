"""The memory of a torch device: how much there is, and what a step takes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from heddle.executor import DeviceMemory
from heddle.executors.graph.recording import LinearAttend
from heddle.executors.memory_plan import Room, extra_bytes, host_room, step_bytes
from heddle.extensions.torch.attention import ATTENTION_SCRATCH
from heddle.extensions.torch.cache import bytes_of_page
from heddle.extensions.torch.graphs import buckets
from heddle.extensions.torch.layout import SPLIT
from heddle.extensions.torch.open_blocks import BLOCK
from heddle.extensions.torch.settings import TorchSettings
from heddle.extensions.torch.tiles import MOST_READ, TILE, padded
from heddle.process_memory import machine_memory
from heddle.state import Fixed, Pages, Window
from heddle.step import most_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.config import EngineConfig
    from heddle.executor import ModelShape
    from heddle.executors.graph.forward import Forward
    from heddle.state import StateKind
    from heddle.weights.hyperparameters import Hyperparameters

_NODES, _NODE_BYTES = 24, 8 << 10
"""Launches of a layer, and bytes of a recorded launch on the device: a guess."""


def free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that may still be allocated, and all its bytes."""
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused, total


def device_memory(device: torch.device) -> DeviceMemory | None:
    """The memory of a device; None if the device has failed."""
    if device.type != "cuda":
        return machine_memory()
    try:
        return DeviceMemory(*free_and_total(device))
    except RuntimeError:
        return None


def room_of(device: torch.device, config: EngineConfig) -> Room:
    """The memory that a model may take on a device."""
    if device.type != "cuda":
        return host_room(config)
    free, total = free_and_total(device)
    part = config.of(TorchSettings).gpu_memory
    kept = total - int(part * total)
    source = f"what gpu_memory {part} leaves of the free memory of {device}"
    return Room({source: max(0, free - kept)}, 1.0)


def buffer_bytes(
    config: EngineConfig,
    shape: ModelShape,
    kinds: Sequence[Sequence[StateKind]],
    forward: Forward,
    hyperparameters: Hyperparameters,
) -> int:
    """Approximate bytes of what a step takes beside weights, states and recorded steps."""
    step = step_bytes(config, shape, MOST_READ) + extra_bytes(config, hyperparameters)
    step += attention_bytes(config, kinds) + recurrence_bytes(config, forward)
    return step + spare_bytes(config, kinds)


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


def recurrence_bytes(config: EngineConfig, forward: Forward) -> int:
    """Approximate bytes that linear attention takes in a step to compare the tokens of blocks.

    Each token and head has a decay (or one for each element of a key), a key, and two rows with a
    number for each token of the block. A chunk may begin and end within a block.
    """
    of_token = 0
    for node in forward.nodes:
        if isinstance(node, LinearAttend):
            decays = node.inputs[3].width
            keys = node.spec.heads * (node.spec.key_dim + 2 * BLOCK)
            of_token = max(of_token, decays + keys)
    return 4 * (config.batch_tokens + 2 * BLOCK * config.slots) * of_token


def spare_bytes(config: EngineConfig, kinds: Sequence[Sequence[StateKind]]) -> int:
    """Bytes of the page of each group, and of the state, that padding writes to."""
    flat = [kind for of_layer in kinds for kind in of_layer]
    pages = [kind.shape for kind in flat if isinstance(kind, Pages | Window)]
    of_pages = sum(bytes_of_page(config.kv_type, 1, shape) for shape in pages)
    return of_pages + sum(kind.bytes for kind in flat if isinstance(kind, Fixed))


def exchange_bytes(config: EngineConfig, shape: ModelShape, ranks: int) -> int:
    """Bytes of the largest value that the ranks exchange in a step: each gets those of all."""
    return 4 * ranks * max(config.batch_tokens * shape.width, MOST_READ * shape.vocabulary)


def graph_bytes(
    config: EngineConfig,
    shape: ModelShape,
    kinds: Sequence[Sequence[StateKind]],
    hyperparameters: Hyperparameters,
) -> int:
    """Approximate bytes of recorded steps, which share the memory of the largest.

    Nobody has measured them on a GPU.
    """
    sizes = buckets(most_rows(config.slots), shape.context)
    tokens = max(size.tokens for size in sizes)
    largest = replace(config, batch_tokens=tokens)
    # Two rotations with tables, and the logits three times: computed, capped, kept.
    tables = 2 * 4 * shape.context * max(_dims(kinds), default=0)
    activations = step_bytes(largest, shape, 3 * tokens) + extra_bytes(largest, hyperparameters)
    nodes = len(sizes) * shape.layers * _NODES
    return tables + activations + 2 * ATTENTION_SCRATCH + nodes * _NODE_BYTES


def _dims(kinds: Sequence[Sequence[StateKind]]) -> list[int]:
    flat = [kind for of_layer in kinds for kind in of_layer]
    return [kind.shape.dim for kind in flat if isinstance(kind, Pages | Window)]
