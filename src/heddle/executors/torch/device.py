"""The torch device of a device's name, and its memory."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from heddle.errors import ConfigError, EngineFailedError, OutOfMemoryError
from heddle.memory import available_bytes

if TYPE_CHECKING:
    from heddle.config import EngineConfig

ALLOCATION_ERRORS = (torch.OutOfMemoryError, MemoryError)


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


def free_bytes(device: torch.device) -> int:
    """Bytes that may still be allocated on the device."""
    if device.type == "cpu":
        return available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def set_threads(config: EngineConfig) -> None:
    """Apply the setting `threads`. It holds for the process: torch has one pool of threads."""
    if config.threads:
        torch.set_num_threads(config.threads)


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch raised `error` because an allocation failed."""
    # On the processor it is a RuntimeError like others.
    return isinstance(error, ALLOCATION_ERRORS) or "not enough memory" in str(error)


def out_of_memory_at_load(device: torch.device) -> OutOfMemoryError:
    """The error of a model that does not fit the device."""
    return OutOfMemoryError(
        f"weights and KV cache do not fit the memory of device {device}: set a smaller kv_cache,"
        " fewer slots or a shorter context, or take a smaller model",
        param="model",
    )


def out_of_memory_in_step(device: torch.device) -> EngineFailedError:
    """The error of a step whose buffers do not fit the device."""
    return EngineFailedError(
        f"device {device} has no memory left for the step; set a smaller kv_cache, batch_tokens or"
        " fewer slots"
    )


def device_name(device: torch.device) -> str:
    """The device and the build of torch, for people."""
    if device.type == "cpu":
        return f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"


def device_digest(device: torch.device) -> str:
    """A digest that identifies the results of the device's matmuls.

    Their bits depend on the build of torch, the processor, and the number of threads; on a GPU
    also on Triton.
    """
    digest = hashlib.sha256(device_name(device).encode())
    if device.type != "cpu":
        digest.update(version("triton").encode())
    for rows, inner in ((64, 64), (250, 1000), (4096, 576)):
        left = torch.arange(rows * inner, device=device).reshape(rows, inner) % 251 * 0.37
        right = torch.arange(inner * 16, device=device).reshape(inner, 16) % 241 * 0.11
        digest.update((left @ right).cpu().numpy().tobytes())
    return digest.hexdigest()
