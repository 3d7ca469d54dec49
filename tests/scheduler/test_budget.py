"""The cost of a step's tokens when a recurrent model computes right guesses again."""

from __future__ import annotations

from heddle.sampling_params import SamplingParams
from heddle.scheduler.budget import Budget
from heddle.scheduler.pace import Pace
from heddle.scheduler.queue import Queue
from heddle.scheduler.sequence import Sequence


class Observer(Pace):
    """Records what a step counts as."""

    def observe(self, *step: float) -> None:  # type: ignore[override]
        self.seen = step


def decoding(identity: int, again: int = 0) -> Sequence:
    """A stream, of which the next step computes `again` tokens again."""
    sequence = Sequence(identity, SamplingParams(seed=0), [1] * 20, 10, frozenset())
    sequence.limit, sequence.computed, sequence.again = 100, 19, again
    sequence.turn = identity
    return sequence


def prompt(identity: int, tokens: int) -> Sequence:
    sequence = Sequence(identity, SamplingParams(seed=0), [1] * tokens, tokens, frozenset())
    sequence.limit = 100
    Queue().enter(sequence)
    return sequence


def test_tokens_computed_again_are_guesses_for_the_pace() -> None:
    """They belong to no prompt, so they say nothing about the cost of prompt tokens."""
    pace = Observer()
    budget = Budget(64, pace, 0.0, 64, whole_prompts=False)
    sequence = decoding(1, again=2)
    budget.measure([(sequence, sequence.chunk(1, [5, 6, 7]))], 0.5)
    assert pace.seen == (1, 0.0, 0.5, 5)


def test_tokens_computed_again_leave_less_for_prompts() -> None:
    budget = Budget(10, None, 0.0, 64, whole_prompts=False)
    shares = budget.divide([decoding(1, again=3), decoding(2), prompt(3, 40)], shared=False)
    assert [count for _, count in shares] == [1, 1, 5]


def test_a_turn_has_room_for_tokens_computed_again() -> None:
    budget = Budget(4, None, 0.0, 64, whole_prompts=False)
    running = [decoding(number, again) for number, again in ((1, 2), (2, 1), (3, 0))]
    shares = budget.divide(running, shared=False)
    assert [(one.id, count) for one, count in shares] == [(1, 1)]
