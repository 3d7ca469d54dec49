"""Loads a model for the devices "torch" and "cuda"."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from heddle.errors import ConfigError
from heddle.executors.graph.forward import record
from heddle.executors.memory_plan import plan_memory
from heddle.executors.serving import (
    head_config,
    kept_kinds,
    loaded_tensors,
    served_config,
    served_head,
    served_shape,
)
from heddle.extensions.torch.allocation import is_out_of_memory, out_of_memory_at_load, release
from heddle.extensions.torch.blocks import stored_bytes
from heddle.extensions.torch.cache import bytes_of_page
from heddle.extensions.torch.device import set_up, torch_device
from heddle.extensions.torch.device_memory import buffer_bytes, graph_bytes, room_of
from heddle.extensions.torch.device_sampling import sampling_bytes
from heddle.extensions.torch.division.claims import Claims
from heddle.extensions.torch.division.shares import whole
from heddle.extensions.torch.executor import TorchExecutor, Uploaded
from heddle.extensions.torch.graphs import capture_of
from heddle.extensions.torch.kv_formats import KV_FORMATS
from heddle.extensions.torch.open_blocks import kinds_with_rows
from heddle.extensions.torch.operations import operations, served
from heddle.extensions.torch.parallel import load_parallel, load_rank
from heddle.extensions.torch.program import Program
from heddle.extensions.torch.settings import TorchSettings
from heddle.extensions.torch.weights import TorchLoader
from heddle.models.build import build
from heddle.state import without_last_layer
from heddle.step import most_rows
from heddle.weights.mix import Mix

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from heddle.config import EngineConfig
    from heddle.executor import ModelShape
    from heddle.executors.graph.forward import Forward
    from heddle.extensions.torch.graphs import Capture
    from heddle.extensions.torch.ranks.executor import RankedExecutor
    from heddle.models.decoder import Decoder, PredictionHead
    from heddle.state import StateMemory
    from heddle.weights.checkpoint import Checkpoint


__all__ = ["check_device", "load", "load_rank"]


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
    runs_ahead: bool | None = None,
    capture: Capture | None = None,
) -> TorchExecutor | RankedExecutor:
    """Upload the weights of `checkpoint`; see `heddle.executors.devices.Load`.

    For tests: `samples_on_device`, whether the device runs the samplers that it has, `runs_ahead`,
    whether it takes a step before the result of the last, and `capture`, what records steps. By
    default a GPU does all of it.
    """
    if config.kv_type not in KV_FORMATS:
        raise ConfigError(
            f"kv_type {config.kv_type} is not supported on device {config.device}; set kv_type to"
            f" one of {', '.join(KV_FORMATS)}, or use --device cpu",
            param="kv_type",
        )
    device = torch_device(config.device)
    on_device = device.type != "cpu" if samples_on_device is None else samples_on_device
    ahead = on_device and (device.type != "cpu" if runs_ahead is None else runs_ahead)
    if config.of(TorchSettings).tensor_parallel > 1:
        return load_parallel(
            checkpoint,
            config,
            progress,
            samples_on_device=on_device,
            runs_ahead=ahead,
            capture=capture,
        )
    set_up(config, device)
    model = build(checkpoint, config.context)
    shape = served_shape(config, model.shape)
    config = served_config(config, shape)
    kinds = kept_kinds(model, config)
    head = served_head(model, kinds, config)
    mix = Mix.named(config.quantize)
    recorded = _Recorded.of(checkpoint, config, model, device, progress)
    kinds = kinds_with_rows(recorded.forward, kinds)
    if head is not None:
        kinds.append(head.state(0))
    tensors = loaded_tensors(checkpoint, model, head)
    weight_bytes = sum(stored_bytes(tensor.shape, mix.type_of(tensor)) for tensor in tensors)
    read = checkpoint.hyperparameters
    buffers = buffer_bytes(config, shape, kinds, recorded.forward, read)
    capture = capture or capture_of(device, config)
    if capture is not None:
        buffers += graph_bytes(config, shape, kinds, read)
    if on_device:
        buffers += sampling_bytes(most_rows(config.slots), shape.vocabulary)
    room, of_page = room_of(device, config), partial(bytes_of_page, config.kv_type)
    memory = plan_memory(config, shape, kinds, weight_bytes + buffers, of_page, room)
    make = partial(TorchExecutor, samples_on_device=on_device, runs_ahead=ahead)
    try:
        executor, program = _loaded(recorded, config, head, shape, memory, device, make)
        if shape.causal and (device.type == "cuda" or capture is not None):
            sizes = most_rows(config.slots), config.batch_tokens, shape.context
            program.prepare(*sizes, capture)
        return executor
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            release(device)
            needed = weight_bytes + buffers + memory.bytes
            raise out_of_memory_at_load(device, needed, room) from error
        raise


class _Recorded(NamedTuple):
    """A model whose forward pass is recorded with claims, and the loader of its weights."""

    checkpoint: Checkpoint
    loader: TorchLoader
    claims: Claims
    weights: Any
    forward: Forward

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        model: Decoder,
        device: torch.device,
        progress: Callable[[int], None],
    ) -> _Recorded:
        uses_torch = operations(device).uses_matmuls_of_torch
        loader = TorchLoader.of(checkpoint, device, config, progress, checks_matmuls=uses_torch)
        claims = Claims(checkpoint, Mix.named(config.quantize), loader.constants)
        weights = model.load(claims)
        return cls(checkpoint, loader, claims, weights, served(record(model, weights)))


def _loaded(
    recorded: _Recorded,
    config: EngineConfig,
    head: PredictionHead | None,
    shape: ModelShape,
    memory: StateMemory,
    device: torch.device,
    make: Callable[..., TorchExecutor],
) -> tuple[TorchExecutor, Program]:
    loader = recorded.loader
    forward = whole(recorded.forward, loader)
    matmul_bytes, guesser = loader.matmul_bytes, None
    if head is not None:
        memory, of_head = without_last_layer(memory, partial(bytes_of_page, config.kv_type))
        own = whole(record(head, head.load_beside(recorded.claims, recorded.weights)), loader)
        guesser = make(
            Program(own, of_head, config.kv_type, device),
            replace(shape, layers=1),
            device,
            head_config(config),
            Uploaded(loader.matmul_bytes - matmul_bytes, 0),
            of_head,
        )
    recorded.checkpoint.check_unchanged()
    uploaded = Uploaded(matmul_bytes, loader.bytes)
    program = Program(forward, memory, config.kv_type, device)
    return make(program, shape, device, config, uploaded, memory, guesser), program
