"""State of the reference executor: an array for each group of layers, and fixed-size states."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from heddle.executors.serving import fixed_places, layer_places, page_groups, page_tables
from heddle.extensions.reference.kv_types import LARGEST_CODE, as_kept
from heddle.state import PAGE_TOKENS, pages_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from heddle.models.ops import StatePlace
    from heddle.state import KvShape, StateMemory
    from heddle.step import Chunk, PageCopy, StepPlan

    Float32 = NDArray[np.float32]


def bytes_of_page(layers: int, shape: KvShape) -> int:
    """Bytes of the keys and values of a page's tokens in `layers` layers."""
    return 4 * layers * shape.parts * PAGE_TOKENS * shape.heads * shape.dim


class PagedMemory:
    """Pages of all groups: first the group of all positions, then the windowed groups."""

    def __init__(self, kv_type: str, memory: StateMemory) -> None:
        self.kv_type = kv_type
        self.memory = memory
        self.places = layer_places(memory)
        self.groups: list[Float32] = [
            np.zeros(  # resident once used
                (
                    one.pages,
                    len(one.layers),
                    one.shape.parts,
                    PAGE_TOKENS,
                    one.shape.heads * one.shape.dim,
                ),
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

    def _group(self, copy: PageCopy) -> Float32:
        return self.groups[0 if copy.window is None else copy.window + 1]

    def _parts(self, page: int, windows: Sequence[int]) -> Iterator[Float32]:
        for group, number in zip(self.groups, chain((page,), windows), strict=True):
            yield group[number]


class FixedStates:
    """The fixed-size states of slots, and snapshots of them.

    Attributes:
        slots: the state of each slot that has one, float32.
    """

    def __init__(self, memory: StateMemory) -> None:
        self._places = {layer: begin // 4 for layer, begin in fixed_places(memory).items()}
        self._count = memory.snapshot_bytes // 4
        self.slots: dict[int, Float32] = {}
        self._marked: dict[int, Float32] = {}
        self._snapshots: dict[int, Float32] = {}
        self._most = memory.snapshots

    def prepare(self, plan: StepPlan) -> None:
        """Clear and restore states before the chunks of a plan."""
        for slot in plan.clears:
            self.slots[slot] = np.zeros(self._count, np.float32)
        for restore in plan.restores:
            self.slots[restore.slot] = self._snapshots[restore.snapshot].copy()

    def keep(self, plan: StepPlan) -> None:
        """Make the snapshots of a plan, after its chunks."""
        for copy in plan.snapshots:
            self._snapshots[copy.snapshot] = self.slots[copy.slot].copy()

    def mark(self, slot: int) -> None:
        """Remember the state of a slot before its uncertain tokens."""
        if self._count:
            self._marked[slot] = self.slots[slot].copy()

    def rewind(self, slot: int) -> None:
        """Go back to the state before the uncertain tokens."""
        if self._count:
            self.slots[slot] = self._marked[slot]

    def part(self, slot: int, place: StatePlace) -> Float32:
        """A part (count,) of the state of a slot."""
        begin = self._places[place.layer] + place.first
        return self.slots[slot][begin : begin + place.count]

    def read(self, snapshot: int) -> memoryview:
        """The bytes of a snapshot."""
        return memoryview(self._snapshots[self._checked(snapshot)].tobytes())

    def write(self, snapshot: int, content: memoryview) -> None:
        """Make a snapshot of the bytes that `read` returned."""
        self._snapshots[self._checked(snapshot)] = np.frombuffer(content, np.float32).copy()

    def problems(self, plan: StepPlan) -> Iterator[str]:
        """Everything in a plan that is out of range."""
        for copy in (*plan.restores, *plan.snapshots):
            if copy.snapshot not in range(self._most):
                yield f"bad snapshot {copy.snapshot}"
        bound = {*self.slots, *plan.clears, *(restore.slot for restore in plan.restores)}
        if self._count and not {chunk.slot for chunk in plan.chunks} <= bound:
            yield "a chunk of a slot without state"
        if any(restore.snapshot not in self._snapshots for restore in plan.restores):
            yield "a snapshot that nobody made"

    def _checked(self, snapshot: int) -> int:
        if snapshot not in range(self._most):
            raise ValueError(f"there is no snapshot {snapshot}")
        return snapshot


@dataclass(frozen=True, slots=True)
class PagedCache:
    """The state of one sequence: keys and values in the pages that its chunk names, and the
    fixed-size state of its slot."""

    memory: PagedMemory
    states: FixedStates
    chunk: Chunk

    @property
    def coded(self) -> str:
        """See `heddle.extensions.reference.ops.SequenceState`."""
        return self.memory.kv_type if self.memory.kv_type in LARGEST_CODE else ""

    def fixed(self, place: StatePlace) -> Float32:
        """See `heddle.extensions.reference.ops.SequenceState`."""
        return self.states.part(self.chunk.slot, place)

    def store(self, layer: int, start: int, *parts: Float32) -> tuple[Float32, ...]:
        """See `heddle.extensions.reference.ops.SequenceState`."""
        group, number = self.memory.places[layer]
        first, pages = page_tables(self.chunk)[group]
        content, kv_type = self.memory.groups[group][:, number], self.memory.kv_type
        stored = np.stack([as_kept(part, kv_type) for part in parts])
        for index in range(len(parts[0])):
            page, place = divmod(start + index, PAGE_TOKENS)
            content[pages[page - first], :, place] = stored[:, index]
        return self.stored(layer, start + len(parts[0]))

    def stored(self, layer: int, end: int) -> tuple[Float32, ...]:
        """See `reference.ops.SequenceState`. Positions without a page are zeros."""
        group, number = self.memory.places[layer]
        first, pages = page_tables(self.chunk)[group]
        content = self.memory.groups[group][:, number]
        held = content[list(pages[: pages_for(end) - first])]
        given_back = np.zeros((first, *held.shape[1:]), np.float32)
        return tuple(np.concatenate([*given_back, *held], axis=1)[:, :end])
