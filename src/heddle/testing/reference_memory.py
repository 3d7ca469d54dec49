"""KV pages of the reference executor: a float32 array for each group of layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from heddle.executors.serving import layer_places, page_groups
from heddle.state import PAGE_TOKENS, pages_for
from heddle.testing.reference_ops import as_kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from heddle.state import KvShape, StateMemory
    from heddle.step import Chunk, PageCopy

    Float32 = NDArray[np.float32]


def bytes_of_page(layers: int, shape: KvShape) -> int:
    """Bytes of the keys and values of a page's tokens in `layers` layers."""
    return 4 * layers * 2 * PAGE_TOKENS * shape.heads * shape.dim


class PagedMemory:
    """Pages of all groups: first the group of all positions, then the windowed groups."""

    def __init__(self, kv_type: str, memory: StateMemory) -> None:
        self.kv_type = kv_type
        self.memory = memory
        self.places = layer_places(memory)
        self.groups: list[Float32] = [
            np.zeros(  # resident once used
                (one.pages, len(one.layers), 2, PAGE_TOKENS, one.shape.heads * one.shape.dim),
                np.float32,
            )
            for one in page_groups(memory)
        ]

    def copy(self, copy: PageCopy) -> None:
        """Copy a page of one group."""
        pages = self._group(copy)
        pages[copy.target] = pages[copy.source]

    def read(self, page: int, windows: Sequence[int]) -> memoryview:
        """The bytes of one page of each group, joined."""
        return memoryview(b"".join(part.tobytes() for part in self._parts(page, windows)))

    def write(self, page: int, content: memoryview, windows: Sequence[int]) -> None:
        """Write bytes that `read` returned."""
        values, begin = np.frombuffer(content, np.float32), 0
        for part in self._parts(page, windows):
            part[:] = values[begin : begin + part.size].reshape(part.shape)
            begin += part.size

    def may_copy(self, copy: PageCopy) -> bool:
        """Whether source and target are two different pages of the group."""
        if copy.window is not None and not 0 <= copy.window < len(self.memory.windows):
            return False
        pages = range(len(self._group(copy)))
        return copy.source != copy.target and copy.source in pages and copy.target in pages

    def covers(self, chunk: Chunk) -> bool:
        """Whether the chunk names pages for all positions that its tokens see in each group."""
        if len(chunk.windows) != len(self.memory.windows):
            return False
        end = pages_for(chunk.start + len(chunk.tokens))
        seen = [0, *(window.first_page(chunk.start) for window in self.memory.windows)]
        tables = zip(self.groups, _tables(chunk), seen, strict=True)
        return all(
            0 <= first <= first_seen
            and first + len(pages) >= end
            and all(page in range(len(group)) for page in pages[: end - first])
            for group, (first, pages), first_seen in tables
        )

    def _group(self, copy: PageCopy) -> Float32:
        return self.groups[0 if copy.window is None else copy.window + 1]

    def _parts(self, page: int, windows: Sequence[int]) -> Iterator[Float32]:
        for group, number in zip(self.groups, chain((page,), windows), strict=True):
            yield group[number]


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of one sequence, in the pages that its chunk names."""

    memory: PagedMemory
    chunk: Chunk

    def store(self, layer: int, start: int, k: Float32, v: Float32) -> tuple[Float32, Float32]:
        """See `heddle.testing.reference_ops.KeyValues`."""
        group, number = self.memory.places[layer]
        first, pages = _tables(self.chunk)[group]
        content, kv_type = self.memory.groups[group][:, number], self.memory.kv_type
        stored = np.stack([as_kept(k, kv_type), as_kept(v, kv_type)])
        for index in range(len(k)):
            page, place = divmod(start + index, PAGE_TOKENS)
            content[pages[page - first], :, place] = stored[:, index]
        return self.stored(layer, start + len(k))

    def stored(self, layer: int, end: int) -> tuple[Float32, Float32]:
        """See `heddle.testing.reference_ops.KeyValues`. Positions without a page are zeros."""
        group, number = self.memory.places[layer]
        first, pages = _tables(self.chunk)[group]
        content = self.memory.groups[group][:, number]
        held = content[list(pages[: pages_for(end) - first])]
        given_back = np.zeros((first, *held.shape[1:]), np.float32)
        keys, values = np.concatenate([*given_back, *held], axis=1)[:, :end]
        return keys, values


def _tables(chunk: Chunk) -> list[tuple[int, Sequence[int]]]:
    """For each group, the number of the first page that the sequence holds, and its page ids."""
    return [(0, chunk.pages), *((window.first, window.pages) for window in chunk.windows)]
