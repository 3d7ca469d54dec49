"""Random conversations over a disk tier whose model has windowed layers or a recurrence.

This adds windowed pages and snapshots to the state machine of `test_disk_random.py`. The executor
detects a wrong restore: its windowed pages hold tokens, and its states are folds of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize
from test_disk_random import DiskMachine
from test_windows_random import windows

from fake_executor import FakeExecutor
from heddle.scheduler.planning import next_snapshot
from heddle.state import NO_SHAPE, PAGE_TOKENS, Load, Window, WindowMemory

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan


class DiskStatesMachine(DiskMachine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 100),
        pages=st.integers(3, 8) | st.integers(30, 60),
        most_nodes=st.just(0) | st.integers(1, 6),
        ahead=st.integers(1, 3),
        loads=st.integers(1, 4),
        positions=st.lists(windows, max_size=2),
        more=st.integers(0, 2) | st.integers(0, 20),
        snapshots=st.sampled_from([0, 0, 1, 3, 40]),
    )
    def start(
        self,
        slots: int,
        batch_tokens: int,
        pages: int,
        most_nodes: int,
        ahead: int,
        loads: int,
        positions: list[int],
        more: int,
        snapshots: int,
    ) -> None:
        self.groups = []
        load = Load(slots, 400, batch_tokens)
        for window in (Window(one, NO_SHAPE) for one in positions):
            reach = load.reach(window)
            count = min(pages, reach + more)
            self.groups.append(WindowMemory(window.positions, count, reach=reach))
        self.snapshots = snapshots
        super().start(slots, batch_tokens, pages, most_nodes, 10**9, ahead, loads)

    def make_executor(self, pages: int) -> FakeExecutor:
        return FakeExecutor(
            pages,
            windows=tuple(self.groups),
            snapshots=self.snapshots,
            snapshot_tokens=PAGE_TOKENS,
        )

    # --- what must hold --------------------------------------------------------------------------

    def paths(self) -> list[tuple[str | None, list[int]]]:
        """None: a prefix hit depends on windows and snapshots."""
        return []

    def check_beginning(self, s: Sequence, known: Tokens[tuple[str | None, list[int]]]) -> None:
        assert s.restore is None or s.leader is None
        self.seen["found"] += s.computed > 0
        self.seen["followed"] += s.leader is not None

    def check_end(self, s: Sequence) -> None:
        assert s.computed == s.total - bool(s.output_tokens)

    def check_nothing_is_computed_twice(self, plan: StepPlan) -> None:
        """No check: tokens after a snapshot or with revoked windows are computed again."""

    def most_of(self, sequence: Sequence) -> int:
        if not self.snapshots:
            return sequence.remaining
        return min(sequence.remaining, next_snapshot(sequence, PAGE_TOKENS) - sequence.computed)


TestDiskStates = DiskStatesMachine.TestCase
TestDiskStates.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
