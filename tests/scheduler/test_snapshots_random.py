"""Random conversations over a prefix cache whose model has a recurrence, and perhaps windows.

This adds a fixed-size state for each slot to the state machine of `test_windows_random.py`. The
executor folds each token into the slot's state. It detects a sequence that continues from a state
of other tokens. A request must begin at the longest snapshot in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize
from test_windows_random import WindowMachine, windows

from fake_executor import FakeExecutor, state_after
from heddle.scheduler.planning import next_snapshot
from heddle.state import PAGE_TOKENS, TokenArray

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan


class SnapshotMachine(WindowMachine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 6) | st.integers(7, 100),
        pages=st.integers(2, 8) | st.integers(30, 60),
        most_nodes=st.just(0) | st.integers(1, 6),
        run_tokens=st.sampled_from([PAGE_TOKENS, 2 * PAGE_TOKENS, 4 * PAGE_TOKENS]),
        positions=st.lists(windows, max_size=1),
        more=st.integers(0, 2) | st.integers(0, 20),
        snapshots=st.integers(1, 4) | st.integers(20, 60),
        every=st.sampled_from([8, PAGE_TOKENS, 2 * PAGE_TOKENS]),
    )
    def start(
        self,
        slots: int,
        batch_tokens: int,
        pages: int,
        most_nodes: int,
        run_tokens: int,
        positions: list[int],
        more: int,
        snapshots: int,
        every: int,
    ) -> None:
        self.snapshots, self.spacing = snapshots, every
        super().start(slots, batch_tokens, pages, most_nodes, run_tokens, positions, more)
        self.seen |= {"snapshots": 0, "restored": 0}

    def make_executor(self, pages: int) -> FakeExecutor:
        windows = tuple(self.groups)
        return FakeExecutor(
            pages, windows=windows, snapshots=self.snapshots, snapshot_tokens=self.spacing
        )

    def revocations(self) -> int:
        pool = self.cache._pools.snapshots.pool
        return super().revocations() + sum(ticket // pool.size for ticket in pool._tickets)

    def schedule(self) -> StepPlan:
        plan = super().schedule()
        self.seen["snapshots"] += len(plan.snapshots)
        self.seen["restored"] += len(plan.restores)
        for copy in plan.snapshots:
            (end,) = (c.start + len(c.tokens) for c in plan.chunks if c.slot == copy.slot)
            (sequence,) = (s for s in self.live if s.slot == copy.slot)
            assert end % self.spacing == 0 or end == sequence.prompt_tokens
        return plan

    def most_of(self, sequence: Sequence) -> int:
        stop = next_snapshot(sequence, self.spacing)
        return min(sequence.remaining, stop - sequence.computed)

    # --- what must hold --------------------------------------------------------------------------

    def is_resumable(self, s: Sequence, length: int) -> bool:
        """Whether the cache has the windows and a snapshot of the state after these tokens."""
        if not super().is_resumable(s, length):
            return False
        if not length:
            return True
        run = TokenArray("i", s.tokens[:length])
        node = self.cache.prefixes.tree.match(s.params.cache_salt, run).path[-1]
        snapshot = self.cache._pools.snapshots.of(node)
        if snapshot is None or node.end != length:
            return False
        assert self.executor.kept_states[snapshot] == state_after(s.tokens[:length])
        return True

    def check_end(self, s: Sequence) -> None:
        match = self.cache.prefixes.match(s.params.cache_salt, s.tokens)
        assert match.length == max(p for p in range(s.total) if self.is_resumable(s, p))
        if self.snapshots >= 20 and not self.revocations():
            taken = min(s.computed, s.total - 1)
            assert match.length >= taken - taken % self.spacing

    def check_nothing_is_computed_twice(self, plan: StepPlan) -> None:
        """No check: tokens after a snapshot are computed again."""

    def end(self) -> None:
        super().end()
        pool = self.cache._pools.snapshots.pool
        assert pool.free == pool.size


TestSnapshots = SnapshotMachine.TestCase
TestSnapshots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
