"""Fixed-size states of slots on a torch device, and snapshots of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from heddle.executors.serving import fixed_places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.models.ops import StatePlace
    from heddle.state import StateMemory
    from heddle.step import Chunk, StepPlan


class FixedStates:
    """Two float32 states for each slot, the snapshots, and a state that padding writes to.

    The second state of a slot is the one before the uncertain tokens of its last chunk.

    Attributes:
        slots: number of slots.
        spare: the row of the state that no slot owns.
    """

    def __init__(self, memory: StateMemory, device: torch.device) -> None:
        self._begins = {layer: begin // 4 for layer, begin in fixed_places(memory).items()}
        self.slots, self._snapshots = memory.states // 2, memory.snapshots
        self.spare = memory.states + memory.snapshots
        self._states = torch.zeros(self.spare + 1, memory.snapshot_bytes // 4, device=device)

    def prepare(self, plan: StepPlan) -> None:
        """Clear and restore states before the chunks of a plan."""
        for slot in plan.clears:
            self._states[slot] = 0.0
        for copy in plan.restores:
            self._states[copy.slot] = self._states[self._row(copy.snapshot)]

    def keep(self, plan: StepPlan) -> None:
        """Make the snapshots of a plan, after its chunks and before any slot goes back."""
        for copy in plan.snapshots:
            self._states[self._row(copy.snapshot)] = self._states[copy.slot]

    def rewind(self, slot: int) -> None:
        """Go back to the state before the uncertain tokens. Without states, nothing happens."""
        if self.slots:
            self._states[slot] = self._states[slot + self.slots]

    def part(self, chunk: Chunk, place: StatePlace, *, certain: bool = False) -> torch.Tensor:
        """A part (count,) of the state of a chunk's slot; of its second one if `certain`."""
        begin = self.first_element(place)
        return self._states[self.rows(chunk)[certain], begin : begin + place.count]

    @property
    def table(self) -> torch.Tensor:
        """All states: (rows, elements)."""
        return self._states

    def rows(self, chunk: Chunk) -> tuple[int, int]:
        """The rows of the states of a chunk's slot."""
        return chunk.slot, chunk.slot + self.slots

    def first_element(self, place: StatePlace) -> int:
        """The element at which a part begins in a state."""
        return self._begins[place.layer] + place.first

    def read(self, snapshot: int) -> memoryview:
        """The bytes of a snapshot."""
        return memoryview(self._states[self._row(snapshot)].cpu().numpy().tobytes())

    def write(self, snapshot: int, content: memoryview) -> None:
        """Make a snapshot of the bytes that `read` returned."""
        values = torch.from_numpy(np.frombuffer(content, np.float32).copy())
        self._states[self._row(snapshot)].copy_(values)

    def problems(self, plan: StepPlan) -> Iterator[str]:
        """Everything in a plan that is out of range."""
        copies = (*plan.restores, *plan.snapshots)
        for snapshot in (copy.snapshot for copy in copies):
            if snapshot not in range(self._snapshots):
                yield f"bad snapshot {snapshot}"
        slots = (*plan.clears, *(copy.slot for copy in copies))
        if self.slots:
            slots = (*slots, *(chunk.slot for chunk in plan.chunks))
        for slot in slots:
            if slot not in range(self.slots):
                yield f"bad slot {slot}"

    def _row(self, snapshot: int) -> int:
        if snapshot not in range(self._snapshots):
            raise ValueError(f"there is no snapshot {snapshot}")
        return 2 * self.slots + snapshot
