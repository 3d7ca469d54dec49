"""Copies between host and device that wait for no other work of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sent(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of values on the device. This does not wait for the device."""
    return _pinned(values, device).to(device, non_blocking=True)


def send(values: NDArray[Any], target: torch.Tensor) -> None:
    """Copy values to `target`. This does not wait for the device."""
    target.copy_(_pinned(values, target.device), non_blocking=True)


def _pinned(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Values in memory that a GPU reads by itself.

    A copy from other memory would wait until the device has done all work before it. torch gives
    the memory to nobody else before the copy is done.
    """
    given = torch.from_numpy(values)
    return given if device.type == "cpu" else given.pin_memory()


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

    @property
    def is_here(self) -> bool:
        """Whether `read` would not wait."""
        return self._done is None or self._done.query()

    def read(self) -> torch.Tensor:
        """Wait for the values."""
        if self._done is not None:
            self._done.synchronize()
        return self._values
