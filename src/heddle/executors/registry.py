"""The table of devices: one row per device, with the module that makes its executor.

`loader` imports a module only when a model is loaded for its device.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from heddle.config import EngineConfig
    from heddle.step import Executor
    from heddle.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Device:
    """A row of the table.

    Attributes:
        module: has a function `load` with the signature of :class:`Load`. With an extra, it also
            has `check_device`, which raises ConfigError if this machine has no such device.
        extra: the extra of the package that the module needs; empty: none.
        is_numbered: whether a name may end with the number of one of several such devices.
        has_ranks: whether several processes may compute a model together. Then the module also has
            `load_rank`, which makes a :class:`heddle.executors.ranks.child.Follower`.
        own_process: whether the device runs in a process of its own, because it may fail in a way
            that only a new process mends. Then `load` makes a
            :class:`heddle.executors.process.child.GuestExecutor`.
    """

    module: str
    extra: str = ""
    is_numbered: bool = False
    has_ranks: bool = False
    own_process: bool = False


DEVICES = {
    "cpu": Device("heddle.executors.cpu.load"),
    "reference": Device("heddle.testing.reference_load"),
    "torch": Device("heddle.executors.torch.load", "torch", has_ranks=True),
    "cuda": Device(
        "heddle.executors.torch.load", "cuda", is_numbered=True, has_ranks=True, own_process=True
    ),
}
"""Devices by name."""


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
    row = DEVICES.get(name)
    if row is None or (colon and not (row.is_numbered and number.isdecimal())):
        raise ConfigError(
            f"device {device!r} is unknown; use one of: {', '.join(DEVICES)}", param="device"
        )
    module = _module(device, row)
    if row.extra:
        module.check_device(device)
    if row.own_process:
        from heddle.executors.process.load import load_in_process  # it loads the native module

        return partial(load_in_process, row.module)
    load: Load = module.load
    return load


def check_ranks(config: EngineConfig) -> None:
    """Check the settings of ranks, before a model is sought.

    Raises:
        ConfigError: the device has no ranks, or `devices` does not name one GPU for each rank.
    """
    ranks, (name, colon, _) = config.tensor_parallel, config.device.partition(":")
    if ranks == 1 and not config.devices:
        return
    if ranks > 1 and not DEVICES[name].has_ranks:
        able = ", ".join(name for name, row in DEVICES.items() if row.has_ranks)
        raise ConfigError(
            f"tensor_parallel {ranks} does not run on device {config.device!r}; use one of: {able}",
            param="tensor_parallel",
        )
    numbers = [number.strip() for number in config.devices.split(",")] if config.devices else []
    if numbers and (not DEVICES[name].is_numbered or colon):
        raise ConfigError(
            f"devices {config.devices!r} needs a device whose number is open, such as cuda, not"
            f" {config.device!r}",
            param="devices",
        )
    if colon and ranks > 1:
        raise ConfigError(
            f"device {config.device!r} is one GPU, and tensor_parallel {ranks} needs {ranks}; use"
            " device cuda, and name the GPUs in devices",
            param="device",
        )
    if numbers and (
        len(numbers) != ranks or len(set(numbers)) != ranks or not all(map(str.isdecimal, numbers))
    ):
        raise ConfigError(
            f"devices {config.devices!r} must name {ranks} different GPUs by number, one for each"
            " rank of tensor_parallel, such as 0,1",
            param="devices",
        )


def _module(device: str, row: Device) -> ModuleType:
    try:
        return importlib.import_module(row.module)
    except ModuleNotFoundError as error:
        if not row.extra or error.name != "torch":
            raise
        raise ConfigError(
            f"device {device!r} needs torch, which is not installed; install it with"
            f" pip install 'heddle[{row.extra}]'",
            param="device",
        ) from error
