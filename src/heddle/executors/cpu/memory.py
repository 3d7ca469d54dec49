"""Checks that a model fits the memory, and finds the size of the processor's caches."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from heddle import _native
from heddle.errors import OutOfMemoryError
from heddle.memory import memory_limits
from heddle.sizes import gigabytes, parse_size

if TYPE_CHECKING:
    from heddle.weights.tensor_types import TensorType

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def check_memory(model: int, kv_cache: int, keep: int = 0, most: int = 0) -> None:
    """Check, before any allocation, that the memory holds the model and its KV cache.

    `model` is the size of the weights and of a step's buffers, in bytes. `keep` bytes must stay
    free, else the engine would refuse every request. `most` is the setting `model_memory`; 0: no
    limit.

    Raises:
        OutOfMemoryError: the memory does not hold them.
    """
    if most and model + kv_cache > most:
        raise beyond_settings(model, kv_cache, most)
    limits = memory_limits()
    if not limits or model + kv_cache + keep <= min(limits.values()):
        return
    source = min(limits, key=lambda name: limits[name])
    wanted = f"weights and buffers of {gigabytes(model)}"
    param = "model"
    way_out = (
        "take a smaller model, fewer slots, smaller batch_tokens, or a machine with more memory"
    )
    if kv_cache:
        wanted += f" and a KV cache of {gigabytes(kv_cache)}"
    if keep:
        wanted += f" and {gigabytes(keep)} to keep free (min_free_memory)"
    if kv_cache and model + keep < limits[source]:
        param = "kv_cache"
        way_out = "set a smaller kv_cache, or fewer slots or a shorter context, which bound it"
    elif keep and model < limits[source]:
        param = "min_free_memory"
        way_out = f"set a smaller min_free_memory, or {way_out}"
    raise OutOfMemoryError(
        f"{wanted} do not fit {source}, {gigabytes(limits[source])}: {way_out}", param=param
    )


def beyond_settings(model: int, kv_cache: int, most: int) -> OutOfMemoryError:
    """The error for a model that needs more than `most` bytes, the setting `model_memory`."""
    pages = f" and a KV cache of {gigabytes(kv_cache)}" if kv_cache else ""
    return OutOfMemoryError(
        f"weights and buffers of {gigabytes(model)}{pages} do not fit {gigabytes(most)}, the memory"
        " that the settings leave for this model: unload another model, set a larger memory or"
        " model_memory, or take a smaller model",
        param="model",
    )


def packed_bytes(shape: tuple[int, ...], kind: TensorType) -> int:
    """Bytes of a tensor in memory. The types IQ1 to IQ3 take more there than in a file."""
    in_memory = {number: size for _, number, _, _, size, _ in _native.tensor_types()}
    return prod(shape) // kind.block_elements * in_memory.get(int(kind), kind.block_bytes)


def cache_bytes() -> int:
    """Bytes of the largest cache that the first core can use; 0 if the kernel does not tell."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    return max((parse_size(size) for size in sizes), default=0)
