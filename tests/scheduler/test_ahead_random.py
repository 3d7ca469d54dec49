"""Random requests, cancels and faults with steps planned before the tokens of the step before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import event, settings
from hypothesis.stateful import rule
from machine import Machine
from test_disk_random import DiskMachine
from test_guesses_random import GuessingMachine
from test_snapshots_random import SnapshotMachine

from cache_integrity import check_cache
from heddle.step import UNKNOWN

if TYPE_CHECKING:
    from fake_executor import FakeExecutor
    from heddle.step import StepPlan

_ACTS = st.sampled_from([None] * 12 + ["cancel before", "cancel after", "poison", "fail", "shrink"])


class Ahead(Machine):
    """Runs of steps, each of which is submitted before the last is collected."""

    ahead_steps = 0

    def make_executor(self, pages: int) -> FakeExecutor:
        executor = super().make_executor(pages)
        executor.runs_ahead = True
        executor.may_go_back = True  # pages behind a window go back between steps only
        executor.defers = lambda history: None  # only requests with a grammar wait for masks
        return executor

    def mirostat(self, seed: int) -> int:
        return 2 * (seed == 4)

    @rule(count=st.integers(1, 40))
    def steps(self, count: int) -> None:
        self.run_ahead([None] * count, 0)

    @rule(acts=st.lists(_ACTS, min_size=1, max_size=40), which=st.integers(0, 7))
    def run_ahead(self, acts: list[str | None], which: int) -> None:
        plan: StepPlan | None = None
        for act in acts:
            if plan is None:
                if not self.live:
                    break
                plan = self.schedule()
                self.executor.submit(plan)
            plan = self.step_ahead(plan, act, which)
        while plan is not None:
            plan = self.collect(plan, None, None)

    def step_ahead(self, plan: StepPlan, act: str | None, which: int) -> StepPlan | None:
        """Plan one step ahead, and collect the one before. Returns the step then in flight."""
        if act == "cancel before":
            self.cancel(which)
        following = self.scheduler.schedule_ahead()
        if following is not None:
            self.check_ahead(plan, following)
            self.executor.submit(following)
        if act == "cancel after":
            self.cancel(which)
        if act == "fail":
            self.executor.submitted.clear()
            self.fail(plan)
            return None
        if act == "shrink" and sum(len(chunk.tokens) for chunk in plan.chunks) > 1:
            self.executor.submitted.clear()
            most = self.scheduler.shrink_steps()
            assert most is not None
            self.batch_tokens = most
            return None
        return self.collect(plan, following, which if act == "poison" else None)

    def check_ahead(self, plan: StepPlan, following: StepPlan) -> None:
        """Each chunk continues one of the step in flight by one unknown token."""
        self.ahead_steps += 1
        ends = {chunk.slot: chunk.start + len(chunk.tokens) for chunk in plan.chunks}
        for chunk in following.chunks:
            assert (*chunk.tokens,) == (UNKNOWN,)
            assert chunk.start == ends[chunk.slot]
            assert chunk.sample
            owner = self.scheduler.slots[chunk.slot]
            assert owner is not None
            assert not owner.ended
            assert chunk.start + 1 < owner.limit, "it ends with the step in flight"

    def collect(
        self, plan: StepPlan, following: StepPlan | None, poisoned: int | None
    ) -> StepPlan | None:
        self.apply(self.executor.collect(), poisoned)
        check_cache(self.cache)
        return following

    def teardown(self) -> None:
        super().teardown()
        event(f"steps ahead: {min(self.ahead_steps, 3)}")


class AheadWithGuesses(Ahead, GuessingMachine):
    """With windows, prefixes and guesses."""


class AheadWithStates(Ahead, SnapshotMachine):
    """With windows, prefixes and fixed-size states."""


class AheadWithDisk(Ahead, DiskMachine):
    """With prefixes and pages on disk."""


_SETTINGS = settings(max_examples=100, stateful_step_count=30, deadline=None)

TestAhead = Ahead.TestCase
TestAheadWithGuesses = AheadWithGuesses.TestCase
TestAheadWithStates = AheadWithStates.TestCase
TestAheadWithDisk = AheadWithDisk.TestCase
for case in (TestAhead, TestAheadWithGuesses, TestAheadWithStates, TestAheadWithDisk):
    case.settings = _SETTINGS
del case
