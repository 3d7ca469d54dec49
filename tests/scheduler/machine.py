"""A state machine of random adds, cancels, steps and faults against a naive model.

The model knows what every request says when it is alone, and the order of arrival. Whatever
happens around a request, it must say just that, end once, and be passed over by no one.
"""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
from hypothesis import event
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fake_executor import END, FakeExecutor, solo_output
from heddle.cache.manager import CacheManager
from heddle.errors import ContextLengthError, HeddleError, OverloadedError
from heddle.scheduler.scheduler import Scheduler
from heddle.scheduler.sequence import Sequence
from heddle.step import PAGE_TOKENS, Failed, StepPlan, StepResult
from heddle.types import FinishReason, SamplingParams

prompts = st.lists(st.integers(1, 31), min_size=1, max_size=8) | st.integers(1, 120).map(
    lambda length: [7] * length
)


class Machine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 4),
        batch_tokens=st.integers(1, 6) | st.integers(7, 100),
        queue=st.integers(0, 5),
        pages=st.integers(1, 6),
        context=st.integers(2, 400),
    )
    def start(self, slots: int, batch_tokens: int, queue: int, pages: int, context: int) -> None:
        self.slots, self.batch_tokens, self.room = slots, batch_tokens, slots + queue
        self.context = context
        self.capacity = min(context, pages * PAGE_TOKENS)
        self.cache = self.make_cache(pages)
        self.scheduler = Scheduler(slots, batch_tokens, queue, self.cache, context)
        self.executor = FakeExecutor(pages)
        self.live: list[Sequence] = []  # in arrival order
        self.expected: dict[int, list[int]] = {}
        self.said: dict[int, list[int]] = {}
        self.idle_steps: dict[int, int] = {}

    def make_cache(self, pages: int) -> CacheManager:
        return CacheManager(pages)

    @rule(
        prompt=prompts,
        seed=st.integers(0, 3),
        most=st.none() | st.integers(1, 60),
        ignore_eos=st.booleans() | st.just(True),
        copies=st.integers(1, 3),
    )
    def add(
        self, prompt: list[int], seed: int, most: int | None, ignore_eos: bool, copies: int
    ) -> None:
        self.add_copies(prompt, copies, seed=seed, max_tokens=most, ignore_eos=ignore_eos)

    def add_copies(
        self, prompt: list[int], copies: int, *, seed: int, ignore_eos: bool, **fields: Any
    ) -> None:
        first = len(self.expected)
        added = []
        for identity in range(first, first + copies):
            own_seed = seed + identity % 2  # some say the same
            fields["mirostat"] = 2 * (own_seed % 2)
            params = SamplingParams(seed=own_seed, ignore_eos=ignore_eos, **fields)
            ends = frozenset() if ignore_eos else frozenset({END})
            added.append(Sequence(identity, params, list(prompt), len(prompt), ends))
        try:
            if copies <= self.room:
                self.scheduler.add(*added)
        except ContextLengthError:
            assert len(prompt) >= self.capacity
        except OverloadedError:
            assert len(self.live) + copies > self.room
        else:
            if copies <= self.room:
                assert len(prompt) < self.capacity
                assert len(self.live) + copies <= self.room
                self.live += added
                for sequence in added:
                    said = solo_output(prompt, sequence.params, self.capacity)
                    self.expected[sequence.id] = said
                    self.said[sequence.id] = []

    @rule(which=st.integers(0, 7))
    def cancel(self, which: int) -> None:
        if self.live:
            self.cancel_one(self.live[which % len(self.live)])

    def cancel_one(self, sequence: Sequence) -> None:
        assert self.scheduler.cancel(sequence.id)
        assert not self.scheduler.cancel(sequence.id)
        self.live.remove(sequence)

    @rule(
        cancel=st.none() | st.integers(0, 7),
        fails=st.integers(0, 5).map(lambda n: n == 5),
        poisoned=st.none() | st.integers(0, 3),
    )
    def step(self, cancel: int | None, fails: bool, poisoned: int | None) -> None:
        if not self.live:
            return
        plan = self.schedule()
        if cancel is not None:
            self.cancel(cancel)
        if fails:
            self.fail(plan)
        else:
            self.finish(plan, poisoned)

    @rule(count=st.integers(1, 40))
    def steps(self, count: int) -> None:
        while count and self.live:
            self.finish(self.schedule())
            self.agrees_with_the_model()
            count -= 1

    def schedule(self) -> StepPlan:
        fits = self.scheduler._unclaimed() >= 0
        preemptions = self.scheduler.preemptions
        plan = self.scheduler.schedule()
        assert not fits or self.scheduler.preemptions == preemptions, "no output asked for that"
        self.check_plan(plan)
        return plan

    def finish(self, plan: StepPlan, poisoned: int | None = None) -> None:
        """Take the step in. No token can be sampled for slot `poisoned`."""
        result = [
            Failed(one.slot, HeddleError("poisoned")) if one.slot == poisoned else one
            for one in self.executor.execute(plan).sampled
        ]
        for sequence, sampled, finish in self.scheduler.update(StepResult(tuple(result))):
            assert sequence in self.live, "an event for a sequence that ended"
            if isinstance(sampled, Failed):
                assert finish is FinishReason.ERROR
                self.live.remove(sequence)
                continue
            said, expected = self.said[sequence.id], self.expected[sequence.id]
            said.append(sampled.token)
            assert said == expected[: len(said)]
            assert (finish is None) == (len(said) < len(expected))
            if finish is not None:
                stops = said[-1] == END and not sequence.params.ignore_eos
                assert finish is (FinishReason.STOP if stops else FinishReason.LENGTH)
                self.live.remove(sequence)

    def fail(self, plan: StepPlan) -> None:
        carried = {chunk.slot for chunk in plan.chunks}
        expected = [s for s in self.live if s.slot in carried]
        assert self.scheduler.abandon() == expected
        for sequence in expected:
            self.live.remove(sequence)

    def check_plan(self, plan: StepPlan) -> None:
        """Budget, order of service, and nobody left out."""
        self.cache.check_integrity()
        sizes = {chunk.slot: len(chunk.tokens) for chunk in plan.chunks}
        assert 1 <= sum(sizes.values()) <= self.batch_tokens
        running = [s for s in self.live if s.slot >= 0]
        decodes = [s for s in running if s.generating]
        assert all(sizes.get(s.slot, 1) == 1 for s in decodes)
        if len(decodes) < self.batch_tokens:
            assert all(s.slot in sizes for s in decodes), "a decode was left out"
            prompts = [s for s in running if not s.generating and not s.waits]
            for earlier, later in itertools.pairwise(prompts):
                assert later.slot not in sizes or sizes[earlier.slot] == earlier.remaining
        most = -(-self.slots // self.batch_tokens)
        left_out = [s for s in running if s.slot not in sizes and not s.waits]
        idle = {s.id: self.idle_steps.get(s.id, 0) + 1 for s in left_out}
        assert all(idle.get(s.id, 0) < most for s in decodes), "a decode starves"
        self.idle_steps = idle

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "live"):
            return
        self.cache.check_integrity()
        running = [s for s in self.scheduler.slots if s is not None]
        assert sorted(running, key=self.live.index) == self.live[: len(running)], "overtaken"
        assert self.scheduler.waiting == len(self.live) - len(running)
        assert self.scheduler.busy == bool(self.live)
        held = {page for s in running for page in (*s.table.pages, s.table.source)} - {None}
        assert self.cache.available == self.cache.pages - len(held)

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        self.steps(20_000)
        assert not self.live, "no end in sight"
        event(f"preemptions: {min(self.scheduler.preemptions, 3)}")
        assert self.cache.available == self.cache.pages
        assert self.scheduler.slots == (None,) * self.slots
