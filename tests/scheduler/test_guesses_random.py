"""Random conversations in which steps guess tokens, right ones and wrong ones.

This adds a drafter to the state machines of `test_windows_random.py` and
`test_snapshots_random.py`. It knows each output, and lies now and then. The output stays that of a
request alone, pages are given back after wrong guesses, and states go back to before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import event, settings
from machine import Machine
from test_snapshots_random import SnapshotMachine
from test_windows_random import WindowMachine

from guessers import Costless, Oracle
from heddle.parameters import Speculation
from heddle.scheduler.speculation import Speculator
from heddle.token_rules import TokenRules

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from fake_executor import FakeExecutor
    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan


class Guesses(Machine):
    """The rules that both machines add."""

    repeats = False

    def make_speculator(self) -> Speculator:
        drafters = {"seldom": self.oracle(7), "often": self.oracle(2)}
        return Speculator(drafters, Costless(), Speculation.MOST)  # type: ignore[arg-type]

    def oracle(self, lies: int):
        def make(sequence: Sequence) -> Oracle | None:
            return Oracle(self.expected[sequence.id], lies) if sequence.id % 4 else None

        return make

    def check_plan(self, plan: StepPlan) -> None:
        super().check_plan(plan)
        for chunk in plan.chunks:
            again = self.scheduler.slots[chunk.slot].again
            assert not chunk.guesses or chunk.known == 1 + again
            assert not again or isinstance(self, SnapshotMachine)
            self.repeats = self.repeats or again > 0

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "scheduler"):
            assert self.speculator is not None
            counts = self.speculator.counts
            event(f"computed again: {self.repeats}")
            event(f"accepted: {counts.accepted > 0}")
            event(f"rejected: {counts.accepted < counts.drafted}")


class GuessingMachine(Guesses, WindowMachine):
    pass


class Anything:
    """A grammar that allows every token, so that tokens may be deferred."""

    def begin(self) -> Anything:
        return self

    def next_mask(self, tokens: Many[int]) -> bytes:
        return b""

    def rewind(self, count: int) -> bool:
        return True


class RecurrentMachine(Guesses, SnapshotMachine):
    def make_sequence(self, identity: int, params: Any, prompt: list[int]) -> Sequence:
        sequence = super().make_sequence(identity, params, prompt)
        if identity % 3:
            sequence.rules = TokenRules(grammar=Anything())
        return sequence

    def make_executor(self, pages: int) -> FakeExecutor:
        executor = super().make_executor(pages)
        executor.defers = self.put_off
        return executor


TestGuesses = GuessingMachine.TestCase
TestGuesses.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestRecurrentGuesses = RecurrentMachine.TestCase
TestRecurrentGuesses.settings = TestGuesses.settings
