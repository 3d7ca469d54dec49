"""Random conversations in which steps guess tokens, right ones and wrong ones.

This adds a drafter to the state machine of `test_windows_random.py`. It knows each output, and lies
now and then. The output stays that of a request alone, and pages are given back after wrong
guesses.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from hypothesis import event, settings
from test_windows_random import WindowMachine

from heddle.parameters import Speculation
from heddle.scheduler.speculation import Speculator

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from heddle.scheduler.sequence import Sequence
    from heddle.step import StepPlan


class Costless:
    """A pace at which guesses cost nothing."""

    def guess_seconds(self, decodes: int, guesses: int) -> float:
        return 1.0

    def longest_step(self, alone: float) -> float:
        return 1.0


class Oracle:
    """Guesses the known output of a sequence. A guess lies if `lies` is true of its history."""

    def __init__(self, output: list[int], lies: int) -> None:
        self.output, self.lies, self.tokens = output, lies, list[int]()
        self.prompt: int | None = None

    def append(self, tokens: Many[int]) -> None:
        self.tokens += tokens
        if self.prompt is None:  # drafters meet a sequence when it decodes
            self.prompt = len(self.tokens) - 1

    def guess(self, most: int) -> tuple[Many[int], int]:
        assert self.prompt is not None
        said = len(self.tokens) - self.prompt
        guesses = self.output[said : said + most]
        return [
            guess + (zlib.crc32(repr((self.tokens, index)).encode()) % self.lies == 0)
            for index, guess in enumerate(guesses)
        ], 3


class GuessingMachine(WindowMachine):
    def make_speculator(self) -> Speculator:
        self.guessed = {"right": 0, "wrong": 0}
        drafters = {"seldom": self.oracle(7), "often": self.oracle(2)}
        return Speculator(drafters, Costless(), Speculation.MOST)  # type: ignore[arg-type]

    def oracle(self, lies: int):
        def make(sequence: Sequence) -> Oracle | None:
            return Oracle(self.expected[sequence.id], lies) if sequence.id % 4 else None

        return make

    def check_plan(self, plan: StepPlan) -> None:
        super().check_plan(plan)
        for chunk in plan.chunks:
            assert not chunk.guesses or chunk.known == 1

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "scheduler"):
            speculator = self.scheduler._speculator
            if speculator is not None:
                event(f"accepted: {speculator.accepted > 0}")
                event(f"rejected: {speculator.accepted < speculator.drafted}")


TestGuesses = GuessingMachine.TestCase
TestGuesses.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
