"""The torch device of a device's name."""

from __future__ import annotations

import hashlib
import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from heddle.errors import ConfigError
from heddle.sizes import counted

if TYPE_CHECKING:
    from heddle.config import EngineConfig


def torch_device(name: str) -> torch.device:
    """The torch device of `torch`, `cuda` or `cuda:N`.

    Raises:
        ConfigError: this machine, or this build of torch, has no such device.
    """
    if name == "torch":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device {name!r} needs a GPU and a build of torch for CUDA; torch {torch.__version__}"
            " finds none. Use cpu, or torch for torch on the processor",
            param="device",
        )
    device = torch.device(name)
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ConfigError(
            f"device {name!r} does not exist; this machine has cuda:0 to cuda:{count - 1}",
            param="device",
        )
    if find_spec("triton") is None:
        raise ConfigError(
            f"device {name!r} needs triton, which is not installed; install it with"
            " pip install 'heddle[cuda]'",
            param="device",
        )
    return device


def set_up(config: EngineConfig, device: torch.device) -> None:
    """Set what holds for the process, its number of threads, and for this thread, its GPU.

    Triton launches kernels on the GPU of the thread. The thread that loads a model computes it.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    if device.index is not None:
        torch.cuda.set_device(device)


def device_name(device: torch.device) -> str:
    """The device and the build of torch, for people."""
    if device.type == "cpu":
        return f"torch {torch.__version__}, {counted(torch.get_num_threads(), 'thread')}"
    return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"


def device_digest(device: torch.device) -> str:
    """A digest that identifies the results of the device's matmuls.

    Their bits depend on the build of torch, the processor, and the number of threads; on a GPU
    also on Triton, and on whether it fuses products and sums.
    """
    digest = hashlib.sha256(device_name(device).encode())
    if device.type != "cpu":
        digest.update(import_module("triton").__version__.encode())
        digest.update(os.environ.get("TRITON_DEFAULT_FP_FUSION", "").encode())
    for rows, inner in ((64, 64), (250, 1000), (4096, 576)):
        left = torch.arange(rows * inner, device=device).reshape(rows, inner) % 251 * 0.37
        right = torch.arange(inner * 16, device=device).reshape(inner, 16) % 241 * 0.11
        digest.update((left @ right).cpu().numpy().tobytes())
    return digest.hexdigest()
