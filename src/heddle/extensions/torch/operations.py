"""The operations that compute on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.torch.ops import TorchOps

if TYPE_CHECKING:
    import torch


def operations(device: torch.device) -> type[TorchOps]:
    """Triton's kernels on a GPU, and torch's functions on the processor."""
    if device.type == "cpu":
        return TorchOps
    # The extra `torch`, for the processor, does not install Triton.
    from heddle.extensions.torch.triton_ops import TritonOps

    return TritonOps
