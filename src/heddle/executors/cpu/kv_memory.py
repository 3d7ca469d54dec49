"""The CPU's memory for keys and values: one native cache for each group of layers."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.errors import ConfigError, UnsupportedModelError
from heddle.executors.serving import layer_places, page_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.executors.cpu.lowering import Places
    from heddle.state import KvShape, StateMemory
    from heddle.step import PageCopy


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
