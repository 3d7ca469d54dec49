"""Collects the plan of one step: its chunks, and the copies before and after them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.state import PAGE_TOKENS
from heddle.step import PageCopy, StateCopy, StepPlan

if TYPE_CHECKING:
    from heddle.cache.sequence_pages import SequencePages
    from heddle.scheduler.sequence import Sequence
    from heddle.step import Binding, Chunk


@dataclass(slots=True)
class PlanBuilder:
    """The plan of one step.

    Attributes:
        chunks: the chunks collected so far.
    """

    _pages: SequencePages
    chunks: list[Chunk] = field(default_factory=list)
    _bindings: list[Binding] = field(default_factory=list)
    _copies: list[PageCopy] = field(default_factory=list)
    _clears: list[int] = field(default_factory=list)
    _restores: list[StateCopy] = field(default_factory=list)
    _snapshots: list[StateCopy] = field(default_factory=list)

    def bind(self, sequence: Sequence, binding: Binding) -> None:
        """Bind a slot to a sequence. Restore or clear the slot's fixed-size state."""
        self._bindings.append(binding)
        if sequence.table.state is not None:
            self._restores.append(StateCopy(sequence.slot, sequence.table.state))
        elif self._pages.snapshot_tokens:
            self._clears.append(sequence.slot)

    def copy_pages(self, sequence: Sequence) -> None:
        """Copy the page inside which the sequence continues, in each group."""
        table, number = sequence.table, sequence.computed // PAGE_TOKENS
        if table.source is not None:
            self._copies.append(PageCopy(table.source, table.pages[number]))
        for group, window in enumerate(table.windows):
            if window.source is not None:
                target = window.pages[number - window.first]
                self._copies.append(PageCopy(window.source, target, group))

    def snapshot(self, sequence: Sequence) -> None:
        """Copy the fixed-size state after the chunk, if there is room for a snapshot."""
        snapshot = self._pages.begin_snapshot(sequence.table)
        if snapshot is not None:
            self._snapshots.append(StateCopy(sequence.slot, snapshot))

    def plan(self) -> StepPlan:
        """The plan of everything collected."""
        return StepPlan(
            tuple(self._bindings),
            tuple(self.chunks),
            tuple(self._copies),
            tuple(self._clears),
            tuple(self._restores),
            tuple(self._snapshots),
        )


def next_snapshot(sequence: Sequence, every: int) -> int:
    """The next position at which to take a snapshot of the sequence's state.

    The positions are the multiples of `every`, and the end of the prompt, because the next turn of
    a chat continues there.
    """
    position = sequence.computed - sequence.computed % every + every
    prompt = sequence.prompt_tokens
    return min(position, prompt) if sequence.computed < prompt else position
