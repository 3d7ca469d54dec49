"""Copies between host and device that wait for no other work of the device."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def sent(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of values on the device. This does not wait for the device.

    torch gives the pinned memory to nobody else before the copy is done.
    """
    given = torch.from_numpy(values)
    return given if device.type == "cpu" else given.pin_memory().to(device, non_blocking=True)


class Fetched:
    """Values on their way to the host.

    The copy follows the device's work so far. A copy that is asked for later would also wait for
    all work that the device got meanwhile, such as the next step.
    """

    def __init__(self, values: torch.Tensor) -> None:
        """Ask for the copy."""
        self._values = values
        self._done: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(values.device))

    def read(self) -> torch.Tensor:
        """Wait for the values."""
        if self._done is not None:
            self._done.synchronize()
        return self._values


class Staging:
    """Two pinned buffers that take turns: the device may still read one while the other is filled.

    A copy from other memory would wait until the device has done all work before it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = cycle([_Buffer(), _Buffer()])

    def send(self, values: NDArray[np.int64], target: torch.Tensor | None = None) -> torch.Tensor:
        """Copy integers (n,) to `target`, or to a new tensor."""
        given = torch.from_numpy(values)
        if self._device.type == "cpu":
            return given if target is None else target.copy_(given)
        if target is None:
            target = torch.empty(len(given), dtype=given.dtype, device=self._device)
        next(self._buffers).send(given, target)
        return target


class _Buffer:
    def __init__(self) -> None:
        self._pinned = torch.empty(0, dtype=torch.int64)
        self._read: torch.cuda.Event | None = None  # happens when the device has read the buffer

    def send(self, given: torch.Tensor, target: torch.Tensor) -> None:
        if self._read is not None:
            self._read.synchronize()
        if len(given) > len(self._pinned):
            self._pinned = torch.empty(2 * len(given), dtype=given.dtype, pin_memory=True)
        pinned = self._pinned[: len(given)]
        pinned.copy_(given)
        target.copy_(pinned, non_blocking=True)
        self._read = torch.cuda.Event()
        self._read.record(torch.cuda.current_stream(target.device))
