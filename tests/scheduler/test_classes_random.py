"""Random priorities and clients against the naive model: same outputs, and nobody starves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import invariant, rule
from machine import Machine, prompts, wishes

from cache_integrity import check_cache
from heddle.scheduler.preemption import SLICE

if TYPE_CHECKING:
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan


class ClassMachine(Machine):
    """Requests of three classes and three clients."""

    client: str | None = None

    def make_sequence(self, identity: int, params: Any, prompt: list[int]) -> Sequence:
        sequence = super().make_sequence(identity, params, prompt)
        sequence.client = self.client
        return sequence

    @rule(
        prompt=prompts,
        seed=st.integers(0, 3),
        most=st.none() | st.integers(1, 2 * SLICE),
        copies=st.integers(1, 3),
        wish=wishes,
        priority=st.integers(-1, 1),
        client=st.sampled_from(["a", "a", "b", "c", None]),
    )
    def add_to_class(
        self,
        prompt: list[int],
        seed: int,
        most: int | None,
        copies: int,
        wish: str,
        priority: int,
        client: str | None,
    ) -> None:
        self.client = client
        fields: dict[str, Any] = {"seed": seed, "max_tokens": most, "priority": priority}
        self.add_copies(prompt, copies, ignore_eos=True, wish=wish, **fields)
        self.client = None

    def schedule(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.check_plan(plan)
        self.check_classes()
        return plan

    def check_prompts(self, prompts: list[Sequence], sizes: dict[int, int]) -> None:
        """Check that prompts of an earlier class get tokens first."""
        for one in prompts:
            later = [s for s in prompts if s.priority > one.priority and s.slot in sizes]
            assert not later or sizes.get(one.slot) == self.most_of(one)

    def check_classes(self) -> None:
        """No sequence waits while a later class runs; the order of a class is that of its slots."""
        running = [s for s in self.scheduler.slots if s is not None]
        waiting = [s for s in self.live if s.slot < 0]
        if running and waiting:
            assert max(s.priority for s in running) <= min(s.priority for s in waiting)
        order = [(s.priority, s.rank) for s in self.scheduler._slots.running]
        assert order == sorted(order)
        assert all(
            (s.leader.priority, s.leader.rank) < (s.priority, s.rank) for s in running if s.leader
        )
        for one in waiting:  # the sequences of a client run in the order of their arrival
            same = [s for s in running if (s.client, s.priority) == (one.client, one.priority)]
            assert all(s.arrival < one.arrival for s in same)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "live"):
            return
        check_cache(self.cache)
        running = [s for s in self.scheduler.slots if s is not None]
        assert self.scheduler.queue.waiting == len(self.live) - len(running)
        assert self.scheduler.busy == bool(self.live)
        queue = self.scheduler.queue
        assert queue.active == len(self.live)
        for priority, of_class in queue._classes.items():
            members = [s for s in self.live if s.priority == priority]
            assert of_class.active == len({s.client for s in members}) > 0
            for client, account in of_class.accounts.items():
                assert account.active == sum(s.client == client for s in members)
                waits = {s for s in members if s.client == client and s.slot < 0}
                assert set(account.waiting) == waits

    def room_for(self) -> int:
        known = self.client is None or any(s.client == self.client for s in self.live)
        return self.room + (0 if known else self.slots)


TestClasses = ClassMachine.TestCase
TestClasses.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
