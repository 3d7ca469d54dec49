"""The CPU's memory for fixed-size states: those of slots, and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.errors import ConfigError, UnsupportedModelError

if TYPE_CHECKING:
    from heddle.state import StateMemory
    from heddle.step import Chunk, StepPlan


class FixedMemory:
    """Two states for each slot, then the snapshots.

    A step that may have to compute tokens again writes the state after them to the slot's other
    state. If the tokens stand, :meth:`advance` makes that one the slot's state.

    Attributes:
        states: the native states.

    Raises (on construction):
        ConfigError: the memory cannot be mapped.
        UnsupportedModelError: the native states cannot have this size.
    """

    def __init__(self, memory: StateMemory) -> None:
        self._memory = memory
        self._now: dict[int, int] = {}  # by slot, the number of its state
        try:
            self.states = _native.FixedStates(
                memory.states + memory.snapshots, memory.snapshot_bytes
            )
        except ValueError as error:
            raise UnsupportedModelError(f"the model cannot be run on a CPU: {error}") from error
        except MemoryError as error:
            raise ConfigError(
                f"cannot map states of {memory.bytes} bytes; set a smaller kv_cache",
                param="kv_cache",
            ) from error

    def prepare(self, plan: StepPlan) -> None:
        """Clear and restore states before the chunks of a plan.

        Raises:
            ValueError: there is no such slot or snapshot.
        """
        for slot in plan.clears:
            self.states.clear(self._of(slot))
        for copy in plan.restores:
            self.states.copy(self._snapshot(copy.snapshot), self._of(copy.slot))

    def places(self, plan: StepPlan) -> list[tuple[int, int, int]]:
        """The states of each chunk, and how many of its tokens are certain.

        The chunk reads the first state, and the second gets its last token. If the states differ,
        the first gets the certain tokens.
        """
        return [
            (self._of(chunk.slot), self._last(chunk), len(chunk.tokens) - chunk.uncertain)
            for chunk in plan.chunks
        ]

    def advance(self, slot: int) -> None:
        """The uncertain tokens of a slot stand."""
        self._now[slot] = self._other(self._of(slot))

    def keep(self, plan: StepPlan) -> None:
        """Make the snapshots of a plan after its chunks, before any slot advances."""
        if plan.snapshots:
            last = {chunk.slot: self._last(chunk) for chunk in plan.chunks}
            for copy in plan.snapshots:
                self.states.copy(last[copy.slot], self._snapshot(copy.snapshot))

    def read(self, snapshot: int) -> memoryview:
        """The bytes of a snapshot."""
        content = np.empty(self._memory.snapshot_bytes, np.uint8)
        self.states.read(self._snapshot(snapshot), content)
        return content.data

    def write(self, snapshot: int, content: memoryview) -> None:
        """Make a snapshot of the bytes that `read` returned."""
        self.states.write(self._snapshot(snapshot), np.frombuffer(content, np.uint8))

    def _of(self, slot: int) -> int:
        if not 0 <= slot < self._memory.states // 2:
            raise ValueError(f"there is no slot {slot}")
        return self._now.setdefault(slot, slot)

    def _last(self, chunk: Chunk) -> int:
        """The state that gets the last token of a chunk."""
        now = self._of(chunk.slot)
        return self._other(now) if chunk.uncertain else now

    def _other(self, state: int) -> int:
        half = self._memory.states // 2
        return state - half if state >= half else state + half

    def _snapshot(self, snapshot: int) -> int:
        if not 0 <= snapshot < self._memory.snapshots:
            raise ValueError(f"there is no snapshot {snapshot}")
        return self._memory.states + snapshot
