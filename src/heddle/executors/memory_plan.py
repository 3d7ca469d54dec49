"""Plans a model's memory before anything is allocated: weights, buffers of a step, KV cache."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.errors import OutOfMemoryError
from heddle.executors.serving import check_pages, load_of
from heddle.process_memory import memory_limits
from heddle.sizes import gigabytes
from heddle.state import PAGE_TOKENS, divide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from heddle.config import EngineConfig
    from heddle.executor import ModelShape
    from heddle.state import KvShape, StateKind, StateMemory
    from heddle.weights.hyperparameters import Hyperparameters

_LEAST_TOKENS = 2048
"""Least tokens of a KV cache under `model_memory`. With fewer, the model could hardly be used, so a
registry unloads another one instead."""

_TEXT_BYTES = 2000
"""Bytes that each token of a vocabulary takes beside weights and pages, in a server. Measured with
SmolLM2 and its 49,152 tokens: a load added 124 MB to weights of 96 MB, and the data for grammars 67
MB more, some of it only while they were made."""

_UNKNOWN = 2 << 30
"""Bytes that are taken as free where the system reports no limit."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that a model may take.

    Attributes:
        limits: bytes that may still be allocated, by a description of the limit for errors.
        share: the part of what the model leaves that a KV cache takes at most, unless the setting
            `kv_cache` says how large it is.
        keep: bytes to keep free (`min_free_memory`).
    """

    limits: Mapping[str, int]
    share: float
    keep: int = 0

    @property
    def free(self) -> int:
        """The lowest limit."""
        return min(self.limits.values(), default=_UNKNOWN)


def host_room(config: EngineConfig) -> Room:
    """The memory of this machine. Half of what a model leaves stays free for other work."""
    return Room(memory_limits(), 0.5, config.min_free_memory)


def plan_memory(
    config: EngineConfig,
    shape: ModelShape,
    kinds: Sequence[Sequence[StateKind]],
    model_bytes: int,
    bytes_of_page: Callable[[int, KvShape], int],
    room: Room,
) -> StateMemory:
    """Divide `kv_cache` bytes among the groups; without this setting, a share of the free memory.

    The free memory excludes the model; `model_memory` bounds it.

    Args:
        config: the settings.
        shape: the model's sizes, with the served context.
        kinds: kinds of state of each layer.
        model_bytes: size of weights and buffers.
        bytes_of_page: bytes of a page of this many layers.
        room: the memory that there is.

    Raises:
        ConfigError: `kv_cache` does not hold a page.
        OutOfMemoryError: model and pages need more memory than there is.
    """
    free = room.free - model_bytes
    left = config.model_memory - model_bytes if config.model_memory else sys.maxsize
    budget = config.kv_cache or max(0, min(int(free * room.share), free - room.keep, left))
    memory = divide(kinds, load_of(config, shape), budget, bytes_of_page)
    check_memory(model_bytes, config.kv_cache and memory.bytes, room, config.model_memory)
    least = min(shape.context, _LEAST_TOKENS) // PAGE_TOKENS
    if not config.kv_cache and left <= budget and memory.pages < least:
        needed = memory.token_page_bytes * least
        raise beyond_settings(model_bytes, needed, config.model_memory)
    if memory.pages < 1 and not config.kv_cache:
        states = memory.states * memory.snapshot_bytes
        check_memory(model_bytes, states + memory.token_page_bytes, room)
    check_pages(memory, budget)
    return memory


def check_memory(model: int, kv_cache: int, room: Room, most: int = 0) -> None:
    """Check, before any allocation, that the memory holds the model and its KV cache.

    `model` is the size of the weights and of a step's buffers, in bytes. `room.keep` bytes must
    stay free, else the engine would refuse every request. `most` is the setting `model_memory`; 0:
    no limit.

    Raises:
        OutOfMemoryError: the memory does not hold them.
    """
    if most and model + kv_cache > most:
        raise beyond_settings(model, kv_cache, most)
    limits, keep = room.limits, room.keep
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


def step_bytes(config: EngineConfig, shape: ModelShape, rows: int) -> int:
    """Approximate bytes of a step's activations, and of `rows` rows of logits.

    The activations of one token take about as much as 19 rows of the residual stream, three
    of them for the copies that matmuls of many tokens read.
    """
    return 4 * (config.batch_tokens * 19 * shape.width + rows * shape.vocabulary)


def text_bytes(shape: ModelShape) -> int:
    """Approximate bytes of a tokenizer, and of llguidance's data of its vocabulary."""
    return _TEXT_BYTES * shape.vocabulary


def extra_bytes(config: EngineConfig, hyperparameters: Hyperparameters) -> int:
    """Approximate bytes of what experts, latents and layers' own inputs take of a step's tokens."""
    read = hyperparameters
    of_token = 2 * read.integer("layers") * read.count("layer_input_width")
    if read.count("experts"):
        widest = max(read.integers("mlp_width", read.integer("layers"), 1))
        of_one = read.integer("width") + 3 * read.count("expert_width", widest)
        of_token += read.integer("experts_used") * of_one
    if read.count("latent_rank"):  # queries and results of all heads
        of_token += 2 * read.integer("heads") * read.count("latent_rank")
    return 4 * config.batch_tokens * of_token
