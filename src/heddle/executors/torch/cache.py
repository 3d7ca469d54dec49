"""Keys and values on a torch device: pages of all groups, in f16."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.executors.serving import layer_places, page_groups
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.state import KvShape, StateMemory
    from heddle.step import PageCopy


def bytes_of_page(layers: int, shape: KvShape) -> int:
    """Bytes of the keys and values of a page's tokens in `layers` layers."""
    return 2 * layers * shape.parts * PAGE_TOKENS * shape.heads * shape.dim


class PagedMemory:
    """Pages of all groups: first the group of all positions, then the windowed groups.

    Attributes:
        places: for each layer, the index of its group and the layer's number in the group.
    """

    def __init__(self, memory: StateMemory, device: torch.device) -> None:
        self._memory = memory
        self.places = layer_places(memory)
        self._groups = [
            torch.zeros(
                (
                    len(group.layers),
                    group.shape.parts,
                    group.pages,
                    PAGE_TOKENS,
                    group.shape.heads * group.shape.dim,
                ),
                dtype=torch.float16,
                device=device,
            )
            for group in page_groups(memory)
        ]

    def parts(self, layer: int) -> tuple[torch.Tensor, ...]:
        """Keys, and values if they are stored: (pages, PAGE_TOKENS, heads * dim) each."""
        group, number = self.places[layer]
        return tuple(self._groups[group][number].unbind())

    def copy(self, copy: PageCopy) -> None:
        """Copy a page of one group."""
        group = self._group(copy)
        group[:, :, copy.target] = group[:, :, copy.source]

    def read(self, page: int, windows: Sequence[int]) -> memoryview:
        """The bytes of one page of each group, joined."""
        pages = [part.cpu().contiguous().numpy() for part in self._pages(page, windows)]
        return memoryview(b"".join(page.tobytes() for page in pages))

    def write(self, page: int, content: memoryview, windows: Sequence[int]) -> None:
        """Write bytes that `read` returned."""
        values, begin = torch.from_numpy(np.frombuffer(content, np.float16).copy()), 0
        for part in self._pages(page, windows):
            part.copy_(values[begin : begin + part.numel()].reshape(part.shape))
            begin += part.numel()

    def _group(self, copy: PageCopy) -> torch.Tensor:
        return self._groups[0 if copy.window is None else copy.window + 1]

    def _pages(self, page: int, windows: Sequence[int]) -> Iterator[torch.Tensor]:
        for group, number in zip(self._groups, chain((page,), windows), strict=True):
            yield group[:, :, number]
