"""The CPU's memory for keys and values: one native cache for each group of layers."""

from __future__ import annotations

import sys
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.errors import ConfigError, UnsupportedModelError
from heddle.executors.cpu.memory import beyond_settings, check_memory
from heddle.executors.serving import check_pages, layer_places, load_of, page_groups
from heddle.memory import available_bytes
from heddle.state import PAGE_TOKENS, divide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.config import EngineConfig
    from heddle.executors.cpu.lowering import Places
    from heddle.state import KvShape, StateKind, StateMemory
    from heddle.step import ModelShape, PageCopy


_LEAST_TOKENS = 4096
"""Least tokens of a KV cache under `model_memory`. With fewer, the model could hardly be used, so a
registry unloads another one instead."""


class KvMemory:
    """Pages of all groups: the group of all positions first, then the windowed ones.

    Attributes:
        memory: numbers of pages and layers of each group.
        caches: the native cache of each group.
        places: for each layer, the index of its cache and the layer's number in that cache.

    Raises (on construction):
        ConfigError: the memory cannot be mapped, or its thread cannot be started.
        UnsupportedModelError: no native cache holds heads of this size.
    """

    def __init__(self, kv_type: str, memory: StateMemory) -> None:
        self.memory = memory
        self.places: Places = layer_places(memory)
        try:
            self.caches = tuple(
                _native.KvCache(
                    kv_type,
                    len(group.layers),
                    group.shape.heads,
                    group.shape.dim,
                    group.pages,
                    group.shape.has_values,
                )
                for group in page_groups(memory)
            )
        except ValueError as error:
            raise UnsupportedModelError(f"the model cannot be run on a CPU: {error}") from error
        except MemoryError as error:
            raise ConfigError(
                f"cannot map a KV cache of {self.memory.bytes} bytes; set a smaller kv_cache",
                param="kv_cache",
            ) from error
        except RuntimeError as error:
            raise ConfigError(
                f"the system cannot start a thread for the KV cache: {error};"
                " allow this process more threads"
            ) from error

    def copy(self, copy: PageCopy) -> None:
        """Copy a page of one group."""
        self.caches[0 if copy.window is None else copy.window + 1].copy(copy.source, copy.target)

    def read(self, page: int, windows: Sequence[int]) -> memoryview:
        """The bytes of one page of each group, one after the other."""
        content = np.empty(self.memory.token_page_bytes, np.uint8)
        for cache, number, part in self._parts(page, windows):
            cache.read(number, content[part])
        return content.data

    def write(self, page: int, content: memoryview, windows: Sequence[int]) -> None:
        """Write the bytes that `read` returned."""
        values = np.frombuffer(content, np.uint8)
        for cache, number, part in self._parts(page, windows):
            cache.write(number, values[part])

    def _parts(
        self, page: int, windows: Sequence[int]
    ) -> Iterator[tuple[_native.KvCache, int, slice]]:
        begin = 0
        for cache, number in zip(self.caches, chain((page,), windows), strict=True):
            yield cache, number, slice(begin, begin + cache.page_bytes)
            begin += cache.page_bytes


def bytes_of_page(kv_type: str, layers: int, kept: KvShape) -> int:
    """Bytes of a page with the keys and values of `layers` layers."""
    return _native.KvCache.bytes_of_page(kv_type, layers, kept.heads, kept.dim, kept.has_values)


def plan_memory(
    config: EngineConfig, shape: ModelShape, kinds: Sequence[Sequence[StateKind]], model_bytes: int
) -> StateMemory:
    """Divide `kv_cache` bytes among the groups; without this setting, half of the free memory.

    The free memory excludes the model; `model_memory` bounds it, and `min_free_memory` stays free.
    `shape.context` is the served context. `model_bytes` is the size of weights and buffers.

    Raises:
        ConfigError: `kv_cache` does not hold a page.
        OutOfMemoryError: model and pages need more memory than the machine has left.
    """
    keep = config.min_free_memory
    free = available_bytes() - model_bytes
    left = config.model_memory - model_bytes if config.model_memory else sys.maxsize
    budget = config.kv_cache or max(0, min(free // 2, free - keep, left))
    memory = divide(kinds, load_of(config, shape), budget, partial(bytes_of_page, config.kv_type))
    check_memory(model_bytes, config.kv_cache and memory.bytes, keep, config.model_memory)
    least = min(shape.context, _LEAST_TOKENS) // PAGE_TOKENS
    if not config.kv_cache and left <= budget and memory.pages < least:
        needed = memory.token_page_bytes * least
        raise beyond_settings(model_bytes, needed, config.model_memory)
    check_pages(memory, budget)
    return memory
