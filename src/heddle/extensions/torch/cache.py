"""Keys and values on a torch device: pages of all groups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.executors.serving import layer_places, page_groups
from heddle.extensions.torch.kv_formats import KV_FORMATS, KvFormat
from heddle.state import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.executors.serving import PageGroup
    from heddle.state import KvShape, StateMemory
    from heddle.step import PageCopy


def bytes_of_page(kv_type: str, layers: int, shape: KvShape) -> int:
    """Bytes of the keys and values of a page's tokens in `layers` layers."""
    vectors = layers * shape.parts * PAGE_TOKENS
    return vectors * KV_FORMATS[kv_type].nbytes(shape.heads * shape.dim)


@dataclass(frozen=True, slots=True)
class Vectors:
    """The keys of one layer in all pages, or its values.

    Attributes:
        fields: tensors (pages, PAGE_TOKENS, ...) of the format.
        format: how a vector is kept.
    """

    fields: tuple[torch.Tensor, ...]
    format: KvFormat

    def store(self, places: torch.Tensor, vectors: torch.Tensor) -> None:
        """Keep vectors (T, heads * dim) at places (T,): page * PAGE_TOKENS + token of the page."""
        for field, rows in zip(self.fields, self.format.encode(vectors), strict=True):
            field.view(-1, field.shape[-1])[places] = rows

    def read(self, pages: torch.Tensor) -> torch.Tensor:
        """The vectors of pages (A, n): (A, n, PAGE_TOKENS, heads * dim), float32."""
        return self.format.decode(*(field[pages] for field in self.fields))


class PagedMemory:
    """Pages of all groups: first the group of all positions, then the windowed groups.

    Each group has one more page, which no sequence owns: padding writes to it.

    Attributes:
        places: for each layer, the index of its group and the layer's number in the group.
        spare: for each group, the first place of the page that no sequence owns.
    """

    def __init__(self, kv_type: str, memory: StateMemory, device: torch.device) -> None:
        self.places = layer_places(memory)
        self._format = KV_FORMATS[kv_type]
        self._groups = [self._fields(group, device) for group in page_groups(memory)]
        self.spare = [group.pages * PAGE_TOKENS for group in page_groups(memory)]

    def parts(self, layer: int) -> tuple[Vectors, ...]:
        """Keys, and values if they are stored."""
        group, number = self.places[layer]
        by_part = zip(*(field[number].unbind() for field in self._groups[group]), strict=True)
        return tuple(Vectors(fields, self._format) for fields in by_part)

    def copy(self, copy: PageCopy) -> None:
        """Copy a page of one group."""
        for field in self._groups[0 if copy.window is None else copy.window + 1]:
            field[:, :, copy.target] = field[:, :, copy.source]

    def read(self, page: int, windows: Sequence[int]) -> memoryview:
        """The bytes of one page of each group, joined."""
        pages = [part.cpu().contiguous().numpy() for part in self._pages(page, windows)]
        return memoryview(b"".join(page.tobytes() for page in pages))

    def write(self, page: int, content: memoryview, windows: Sequence[int]) -> None:
        """Write bytes that `read` returned."""
        raw, begin = torch.from_numpy(np.frombuffer(content, np.uint8).copy()), 0
        for part in self._pages(page, windows):
            own = raw[begin : begin + part.nbytes]
            part.copy_(own.view(part.dtype).reshape(part.shape))
            begin += part.nbytes

    def _fields(self, group: PageGroup, device: torch.device) -> list[torch.Tensor]:
        """The tensors of a group: (layers, parts, pages, PAGE_TOKENS, ...) each."""
        width = group.shape.heads * group.shape.dim
        pages = len(group.layers), group.shape.parts, group.pages + 1, PAGE_TOKENS
        return [
            torch.zeros((*pages, width // shared), dtype=kind, device=device)
            for kind, shared in self._format.fields
        ]

    def _pages(self, page: int, windows: Sequence[int]) -> Iterator[torch.Tensor]:
        for group, number in zip(self._groups, chain((page,), windows), strict=True):
            for field in group:
                yield field[:, :, number]
