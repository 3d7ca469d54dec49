"""Loads a model for the devices "torch" and "cuda"."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from heddle.executors.cpu.memory import beyond_settings
from heddle.executors.serving import (
    check_pages,
    head_config,
    kept_kinds,
    load_of,
    loaded_tensors,
    served_config,
    served_head,
    served_shape,
)
from heddle.executors.torch.blocks import stored_bytes
from heddle.executors.torch.cache import bytes_of_page
from heddle.executors.torch.device import (
    free_bytes,
    is_out_of_memory,
    out_of_memory_at_load,
    set_threads,
    torch_device,
)
from heddle.executors.torch.executor import TorchExecutor, Uploaded
from heddle.executors.torch.weights import TorchLoader
from heddle.models.registry import build
from heddle.state import divide, without_last_layer
from heddle.weights.mix import Mix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from heddle.config import EngineConfig
    from heddle.models.decoder import Decoder, PredictionHead
    from heddle.state import StateKind, StateMemory
    from heddle.step import ModelShape
    from heddle.weights.checkpoint import Checkpoint


def check_device(name: str) -> None:
    """Check that this machine has the device.

    Raises:
        ConfigError: it has not, or this build of torch cannot use it.
    """
    torch_device(name)


def load(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Callable[[int], None] = lambda loaded: None,
    *,
    samples_on_device: bool | None = None,
) -> TorchExecutor:
    """Upload the weights of `checkpoint`; see `heddle.executors.registry.Load`.

    `samples_on_device` is for tests: see `TorchExecutor`.
    """
    device = torch_device(config.device)
    model = build(checkpoint, config.context)
    shape = served_shape(config, model.shape)
    config = served_config(config, shape)
    kinds = kept_kinds(model, config)
    head = served_head(model, kinds, config)
    if head is not None:
        kinds.append(head.state(0))
    mix = Mix.named(config.quantize)
    tensors = loaded_tensors(checkpoint, model, head)
    weight_bytes = sum(stored_bytes(tensor.shape, mix.type_of(tensor)) for tensor in tensors)
    memory = _plan_memory(config, shape, kinds, weight_bytes, device)
    set_threads(config)
    make = partial(TorchExecutor, samples_on_device=samples_on_device)
    try:
        return _loaded(checkpoint, config, model, head, shape, memory, device, progress, make)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise out_of_memory_at_load(device) from error
        raise


def _loaded(
    checkpoint: Checkpoint,
    config: EngineConfig,
    model: Decoder,
    head: PredictionHead | None,
    shape: ModelShape,
    memory: StateMemory,
    device: torch.device,
    progress: Callable[[int], None],
    make: Callable[..., TorchExecutor],
) -> TorchExecutor:
    loader = TorchLoader(
        checkpoint,
        device,
        mix=Mix.named(config.quantize),
        allow_nonfinite=config.allow_nonfinite,
        progress=progress,
        threads=config.threads,
    )
    weights = model.load(loader)
    matmul_bytes, guesser = loader.matmul_bytes, None
    if head is not None:
        memory, of_head = without_last_layer(memory, partial(bytes_of_page, config.kv_type))
        head_weights = head.load_beside(loader, weights)
        guesser = make(
            head,
            replace(shape, layers=1),
            head_weights,
            device,
            head_config(config),
            Uploaded(loader.matmul_bytes - matmul_bytes, 0),
            of_head,
        )
    checkpoint.check_unchanged()
    uploaded = Uploaded(matmul_bytes, loader.bytes)
    return make(model, shape, weights, device, config, uploaded, memory, guesser)


def _plan_memory(
    config: EngineConfig,
    shape: ModelShape,
    kinds: Sequence[Sequence[StateKind]],
    weight_bytes: int,
    device: torch.device,
) -> StateMemory:
    """Divide `kv_cache` bytes among the groups; without this setting, half of the free memory.

    Raises:
        ConfigError: `kv_cache` does not hold a page.
        OutOfMemoryError: weights and pages do not fit.
    """
    left = config.model_memory - weight_bytes if config.model_memory else sys.maxsize
    free = free_bytes(device) - weight_bytes
    keep = config.min_free_memory if device.type == "cpu" else 0
    budget = config.kv_cache or max(0, min(free // 2, free - keep, left))
    memory = divide(kinds, load_of(config, shape), budget, partial(bytes_of_page, config.kv_type))
    pages = memory.bytes if config.kv_cache else 0
    if pages > left:
        raise beyond_settings(weight_bytes, pages, config.model_memory)
    if pages + keep > free:
        raise out_of_memory_at_load(device)
    check_pages(memory, budget)
    return memory
