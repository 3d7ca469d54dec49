"""The operations that compute on a device, and a check that a model needs no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.executors.graph.recording import Apply
from heddle.extensions.torch.ops import TorchOps

if TYPE_CHECKING:
    import torch

    from heddle.executors.graph.forward import Forward


def operations(device: torch.device) -> type[TorchOps]:
    """Triton's kernels on a GPU, and torch's functions on the processor."""
    if device.type == "cpu":
        return TorchOps
    # The extra `torch`, for the processor, does not install Triton.
    from heddle.extensions.torch.triton_ops import TritonOps

    return TritonOps


def served(forward: Forward) -> Forward:
    """The forward pass, if devices of torch compute all of its operations.

    Raises:
        UnsupportedModelError: a family brings one, and only the processor computes it.
    """
    own = next((node for node in forward.nodes if isinstance(node, Apply)), None)
    if own is not None:
        raise UnsupportedModelError(
            f"devices of torch do not compute {type(own.operation).__name__}, which this model"
            " has; use --device cpu",
            param="device",
        )
    return forward
