"""The devices of the registry that this machine and environment have.

`torch` and `cuda` need extras that the default environment of the tests lacks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.errors import ConfigError
from heddle.executors.registry import DEVICES, loader

if TYPE_CHECKING:
    from heddle.config import EngineConfig
    from heddle.step import Executor
    from heddle.weights.checkpoint import Checkpoint

SAMPLING = "torch, sampling"
"""The device `torch` with samplers on the device, as `cuda` has them."""


def is_here(device: str) -> bool:
    """Whether the device's extra is installed, and the machine has such a device."""
    try:
        loader(device)
    except ConfigError:
        return False
    return True


HERE = [device for device in DEVICES if is_here(device)]


EXECUTORS = [*HERE, *([SAMPLING] if "torch" in HERE else [])]
"""The devices, and ways to use them."""


def load_on(name: str, checkpoint: Checkpoint, config: EngineConfig) -> Executor:
    """Load a checkpoint on one of `EXECUTORS`."""
    if name == SAMPLING:
        from heddle.executors.torch.load import load

        return load(checkpoint, replace(config, device="torch"), samples_on_device=True)
    return loader(name)(checkpoint, replace(config, device=name))
