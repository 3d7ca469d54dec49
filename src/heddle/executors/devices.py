"""The devices, and the function that loads a model for one of them.

`loader` imports the code of a device only when a model is loaded for it.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from heddle.doors import Device, extensions, refer
from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.config import EngineConfig
    from heddle.executor import Executor
    from heddle.weights.checkpoint import Checkpoint


@cache
def devices() -> dict[str, Device]:
    """Devices by name: the processor, and those of extensions."""
    known = {"cpu": Device("heddle.executors.cpu.load:load")}
    for extension in extensions().values():
        known |= extension.devices
    return known


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
    """The function that loads a model for `device`, a name of the table or `cuda:1`.

    Raises:
        ConfigError: there is no such device, or what it needs is not installed.
    """
    name, colon, number = device.partition(":")
    row = devices().get(name)
    if row is None or (colon and not (row.is_numbered and number.isdecimal())):
        raise ConfigError(
            f"device {device!r} is unknown; use one of: {', '.join(devices())}", param="device"
        )
    load: Load = _imported(device, row)
    if row.check:
        refer(row.check)(device)
    return partial(refer(row.host), row.load) if row.host else load


def _imported(device: str, row: Device) -> Any:
    try:
        return refer(row.load)
    except ModuleNotFoundError as error:
        if not row.extra or error.name != "torch":
            raise
        raise ConfigError(
            f"device {device!r} needs torch, which is not installed; install it with"
            f" pip install 'heddle[{row.extra}]'",
            param="device",
        ) from error
