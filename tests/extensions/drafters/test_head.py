"""The hidden states that a prediction head keeps, without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fake_executor import FakeExecutor
from heddle.extensions.drafters.head import HeadDrafter
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import Sequence
from heddle.step import HEAD_TOKENS, Chunk, StepPlan, StepResult

if TYPE_CHECKING:
    from heddle.step import States


class Wants:
    """Stands in for a speculator: every sequence gets guesses, and none is asked for."""

    def prepare(self, sequence: Sequence) -> bool:
        return True

    def draft_length(self, name: str, sequences: list[Sequence], seconds: float | None) -> int:
        self.ready = sequences
        return 0


class Rig:
    """A head beside one sequence of a large model."""

    def __init__(self, prompt: int) -> None:
        self.head = HeadDrafter(FakeExecutor(64), 1)
        self.wants: Any = Wants()
        params = SamplingParams(seed=3)
        self.sequence = Sequence(0, params, [1] * prompt, prompt, frozenset())
        self.sequence.limit = 400
        self.mirror: Any = self.head.drafter(self.sequence)

    def compute(self, tokens: int, guesses: int = 0) -> int:
        """The large model computes the next tokens and samples one. Returns the states it keeps."""
        start = self.sequence.computed
        chunk = Chunk(0, start, [1] * tokens, [0], sample=True, guesses=guesses)
        [asked] = self.head.ask(StepPlan((), (chunk,)), [self.sequence], self.wants).chunks
        self.sequence.computed += tokens - guesses
        self.sequence.tokens += [1] * (self.sequence.computed + 1 - self.sequence.total)
        end = start + tokens
        self.head.note(StepResult((), states=(states(end - asked.keep_states, end),)))
        return asked.keep_states

    def is_ready(self) -> bool:
        """Whether the head can guess before the next step."""
        self.head.advance([self.sequence], self.wants)
        return self.wants.ready == [self.sequence]

    def waiting(self) -> list[int]:
        """The positions whose states wait, after the head took the last ones."""
        self.mirror.take_noted()
        return [int(state[0]) for state in self.mirror.waiting]


def states(first: int, end: int) -> States:
    """The state of each position is its number."""
    return np.arange(first, end, dtype=np.float32)[:, None]


def test_a_step_keeps_the_states_of_its_last_tokens() -> None:
    rig = Rig(prompt=100)
    assert rig.compute(100) == HEAD_TOKENS
    assert rig.compute(4, guesses=3) == 4


def test_states_of_wrong_guesses_are_dropped() -> None:
    rig = Rig(prompt=10)
    rig.compute(10)
    assert rig.waiting() == list(range(10))
    rig.compute(4, guesses=3)
    assert rig.waiting() == list(range(11))


def test_the_newest_states_wait_and_no_more_than_a_step_computes() -> None:
    rig = Rig(prompt=HEAD_TOKENS)
    rig.compute(HEAD_TOKENS)
    assert len(rig.waiting()) == HEAD_TOKENS
    for _ in range(5):
        rig.compute(1)
        waiting = rig.waiting()
    assert waiting == list(range(5, HEAD_TOKENS + 5))
    assert (rig.mirror.first, rig.mirror.next) == (5, HEAD_TOKENS + 5)


def test_it_begins_again_behind_states_that_it_missed() -> None:
    rig = Rig(prompt=10)
    rig.compute(10)
    rig.waiting()
    rig.sequence.tokens += [1] * 5
    rig.sequence.computed += 5  # by steps that kept no states
    rig.compute(1)
    assert rig.waiting() == [15]


@pytest.mark.parametrize("missed", [0, 1])
def test_it_guesses_only_after_the_state_before_the_newest_token(missed: int) -> None:
    rig = Rig(prompt=4)
    rig.compute(4)
    rig.sequence.tokens += [1] * missed
    rig.sequence.computed += missed
    assert rig.is_ready() == (not missed)


def test_a_preempted_sequence_takes_no_states_of_before() -> None:
    rig = Rig(prompt=4)
    rig.compute(4)
    rig.head.advance([None], rig.wants)
    assert rig.waiting() == []
