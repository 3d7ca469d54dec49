"""The devices of the registry that this machine and environment have.

`torch` and `cuda` need extras that the default environment of the tests lacks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.executors.devices import devices, loader

if TYPE_CHECKING:
    from heddle.config import EngineConfig
    from heddle.executor import Executor
    from heddle.weights.checkpoint import Checkpoint

SAMPLING = "torch, sampling"
"""The device `torch` as `cuda` runs it: it samples on the device, and takes a step ahead."""


def is_here(device: str) -> bool:
    """Whether the device's extra is installed, and the machine has such a device."""
    try:
        loader(device)
    except ConfigError:
        return False
    return True


HERE = [device for device in devices() if is_here(device)]


EXECUTORS = [*HERE, *([SAMPLING] if "torch" in HERE else [])]
"""The devices, and ways to use them."""


APART = {f"{name}, process": name for name in EXECUTORS if name in {"cpu", "torch", SAMPLING}}
"""Executors in a process of their own, and the same ones without."""


def load_on(name: str, checkpoint: Checkpoint, config: EngineConfig) -> Executor:
    """Load a checkpoint on one of `EXECUTORS`, or of `APART`."""
    if name in APART:
        from heddle.extensions.processes.load import load_in_process

        device = APART[name].removesuffix(", sampling")
        as_cuda = {"samples_on_device": True, "runs_ahead": True}
        options = as_cuda if APART[name] == SAMPLING else {}
        config = replace(config, device=device)
        return load_in_process(devices()[device].load, checkpoint, config, **options)
    if name == SAMPLING:
        from heddle.extensions.torch.load import load

        torch = replace(config, device="torch")
        return load(checkpoint, torch, samples_on_device=True, runs_ahead=True)
    return loader(name)(checkpoint, replace(config, device=name))
