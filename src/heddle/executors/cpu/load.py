"""Loads a model for the CPU: sizes, memory, packed weights, and the executor of its head."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from heddle import _native
from heddle.cores import choose_cores
from heddle.errors import ConfigError
from heddle.executors.cpu.byte_sizes import packed_bytes
from heddle.executors.cpu.executor import CpuExecutor, Packed, sampled_rows
from heddle.executors.cpu.kv_memory import bytes_of_page
from heddle.executors.cpu.weights import CpuLoader
from heddle.executors.memory_plan import (
    extra_bytes,
    host_room,
    plan_memory,
    step_bytes,
    text_bytes,
)
from heddle.executors.serving import (
    head_config,
    kept_kinds,
    loaded_tensors,
    served_config,
    served_head,
    served_shape,
)
from heddle.models.build import build
from heddle.state import without_last_layer
from heddle.weights.mix import Mix

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.weights.checkpoint import Checkpoint


def load(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Callable[[int], None] = lambda packed: None,
) -> CpuExecutor:
    """Pack the weights of `checkpoint`, and make an executor that is ready to run.

    This calls `progress` with the bytes packed so far. Later, nothing reads the files.

    Raises:
        ModelFileError, UnsupportedModelError: the file cannot be served.
        ConfigError: a setting does not fit the model or the machine.
        OutOfMemoryError: this machine has too little memory for the model with these settings.
    """
    model = build(checkpoint, config.context)
    shape = served_shape(config, model.shape)
    config = served_config(config, shape)
    _check_supported(config)
    kinds = kept_kinds(model, config)
    head = served_head(model, kinds, config)
    mix = Mix.named(config.quantize)
    tensors = loaded_tensors(checkpoint, model, head)
    weight_bytes = sum(packed_bytes(tensor.shape, mix.type_of(tensor)) for tensor in tensors)
    buffers = step_bytes(config, shape, sampled_rows(config))
    buffers += extra_bytes(config, checkpoint.hyperparameters)
    if head is not None:
        kinds.append(head.state(0))
        of_head = head_config(config)
        buffers += step_bytes(of_head, shape, sampled_rows(of_head))
    text = text_bytes(shape)
    of_page, room = partial(bytes_of_page, config.kv_type), host_room(config)
    memory = plan_memory(config, shape, kinds, weight_bytes + buffers + text, of_page, room)
    runtime, threads_note = _runtime(config)
    loader = CpuLoader(
        checkpoint, runtime, mix=mix, allow_nonfinite=config.allow_nonfinite, progress=progress
    )
    weights = model.load(loader)
    matmul_bytes = loader.matmul_bytes
    if head is None:
        checkpoint.check_unchanged()
        size = Packed(matmul_bytes, loader.arena.allocated, text)
        return CpuExecutor(
            model, shape, weights, runtime, config, size, memory, threads_note=threads_note
        )
    head_weights = head.load_beside(loader, weights)
    checkpoint.check_unchanged()
    memory, head_memory = without_last_layer(memory, of_page)
    guesser = CpuExecutor(
        head,
        replace(shape, layers=1),
        head_weights,
        runtime,
        head_config(config),
        Packed(loader.matmul_bytes - matmul_bytes, 0, 0),
        head_memory,
    )
    size = Packed(matmul_bytes, loader.arena.allocated, text)
    return CpuExecutor(model, shape, weights, runtime, config, size, memory, guesser, threads_note)


def _check_supported(config: EngineConfig) -> None:
    if config.kv_type == "fp8":
        raise ConfigError(
            "kv_type fp8 is not supported on device cpu; set kv_type to q8_0, q4 or f16, or use"
            " --device torch or cuda",
            param="kv_type",
        )


def _runtime(config: EngineConfig) -> tuple[_native.Runtime, str]:
    """The compute threads, and a note on their count; see `Cores.note`."""
    cores = choose_cores()
    threads, note = (config.threads, "") if config.threads else (len(cores.numbers), cores.note)
    processors = cores.numbers[:threads] if config.pin_threads else ()
    if processors and len(processors) < threads:
        raise ConfigError(
            f"with pin_threads, {threads} threads need as many processors, and there are"
            f" {len(processors)}{cores.note}; set at most {len(processors)} threads",
            param="threads",
        )
    if config.isa != "auto" and config.isa not in _native.isa_levels():
        here = ", ".join(_native.isa_levels())
        raise ConfigError(f"isa {config.isa!r} does not run on this machine; use one of: {here}")
    try:
        return _native.Runtime(threads, config.isa, processors), note
    except RuntimeError as error:
        raise ConfigError(f"{error}; set fewer", param="threads") from error
    except ValueError as error:  # a system without affinity, or a sandbox that forbids it
        raise ConfigError(f"{error}; leave pin_threads off", param="pin_threads") from error
