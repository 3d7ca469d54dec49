"""Numbers of a graph's nodes as tensors on the device."""

from __future__ import annotations

from typing import TypeAlias

import torch

_Key: TypeAlias = tuple[torch.dtype, torch.device, tuple[float, ...]]


class Constants:
    """Makes each tensor once, so that no step waits for its copy to the device.

    Recorded steps read the tensors by address, so they stay as long as the program.
    """

    def __init__(self) -> None:
        self._made: dict[_Key, torch.Tensor] = {}

    def floats(self, values: tuple[float, ...], device: torch.device) -> torch.Tensor:
        """The values (n,) in float32."""
        return self._tensor((torch.float32, device, values))

    def indices(self, values: tuple[int, ...], device: torch.device) -> torch.Tensor:
        """The values (n,) in int64."""
        return self._tensor((torch.int64, device, values))

    def _tensor(self, key: _Key) -> torch.Tensor:
        kind, device, values = key
        if key not in self._made:
            self._made[key] = torch.tensor(values, dtype=kind, device=device)
        return self._made[key]
