"""The devices of the registry that this machine and environment have.

`torch` and `cuda` need extras that the default environment of the tests lacks.
"""

from __future__ import annotations

from heddle.errors import ConfigError
from heddle.executors.registry import DEVICES, loader


def is_here(device: str) -> bool:
    """Whether the device's extra is installed, and the machine has such a device."""
    try:
        loader(device)
    except ConfigError:
        return False
    return True


HERE = [device for device in DEVICES if is_here(device)]
