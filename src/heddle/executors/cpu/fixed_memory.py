"""The CPU's memory for fixed-size states: those of slots, and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heddle import _native
from heddle.errors import ConfigError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Collection

    from heddle.state import StateMemory
    from heddle.step import StepPlan


class FixedMemory:
    """Two states for each slot, then the snapshots.

    A step that may have to compute a token again writes the state after this token to the slot's
    other state. If the token stands, :meth:`advance` makes that one the slot's state.

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

    def places(self, plan: StepPlan, uncertain: Collection[int]) -> list[tuple[int, int]]:
        """For each chunk, the state that it reads and the state that gets its last token.

        They differ for the slots in `uncertain`.
        """
        found = []
        for chunk in plan.chunks:
            now = self._of(chunk.slot)
            found.append((now, self._other(now) if chunk.slot in uncertain else now))
        return found

    def advance(self, slot: int) -> None:
        """The last token of an uncertain slot stands."""
        self._now[slot] = self._other(self._of(slot))

    def keep(self, plan: StepPlan, uncertain: Collection[int]) -> None:
        """Make the snapshots of a plan after its chunks, before any slot advances."""
        for copy in plan.snapshots:
            now = self._of(copy.slot)
            last = self._other(now) if copy.slot in uncertain else now
            self.states.copy(last, self._snapshot(copy.snapshot))

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

    def _other(self, state: int) -> int:
        half = self._memory.states // 2
        return state - half if state >= half else state + half

    def _snapshot(self, snapshot: int) -> int:
        if not 0 <= snapshot < self._memory.snapshots:
            raise ValueError(f"there is no snapshot {snapshot}")
        return self._memory.states + snapshot
