"""The table of devices: one row per device, with the module that makes its executor.

`loader` imports a module only when a model is loaded for its device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.step import Executor
    from heddle.weights.checkpoint import Checkpoint

DEVICES = {
    "cpu": "heddle.executors.cpu.load",
    "reference": "heddle.testing.reference_load",
}
"""Modules by device name. Each module has a function `load` with the signature of :class:`Load`."""


class Load(Protocol):
    """Makes a model ready to run on one device."""

    def __call__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        progress: Callable[[int], None] = ...,
    ) -> Executor:
        """Load the weights of `checkpoint`. Later, nothing reads its files.

        This calls `progress` with the bytes loaded so far.

        Raises:
            ModelFileError, UnsupportedModelError: the file cannot be served.
            ConfigError: a setting does not fit the model or the machine.
            OutOfMemoryError: the device has too little memory for the model with these settings.
        """
        ...


def loader(device: str) -> Load:
    """The function that loads a model for `device`.

    Raises:
        ConfigError: there is no such device.
    """
    if device not in DEVICES:
        raise ConfigError(
            f"device {device!r} is unknown; use one of: {', '.join(DEVICES)}", param="device"
        )
    load: Load = importlib.import_module(DEVICES[device]).load
    return load
