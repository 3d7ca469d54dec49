"""Guesses and work of a draft model, one rule at a time, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_executor import SHAPE, FakeExecutor, next_token
from heddle.extensions.drafters.executor_drafter import Mirror, binding_of
from heddle.extensions.drafters.model import DraftModel
from heddle.sampling_params import SamplingParams
from heddle.scheduler.sequence import Sequence
from heddle.state import PAGE_TOKENS, WindowMemory

if TYPE_CHECKING:
    from collections.abc import Sequence as Many


class Asks:
    """Stands in for a speculator: always asks for `length` guesses.

    Attributes:
        seconds: what the batch drafter said that its steps take, one for each question.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.seconds: list[float | None] = []

    def draft_length(self, name: str, sequences: list[Sequence], seconds: float | None) -> int:
        self.seconds.append(seconds)
        return self.length


class Rig:
    """A draft model beside sequences that a large model would compute."""

    def __init__(
        self, slots: int = 1, length: int = 3, windows: tuple[WindowMemory, ...] = ()
    ) -> None:
        self.executor = FakeExecutor(64, windows=windows, may_go_back=True)
        self.model = DraftModel(self.executor, slots)
        self.asks = Asks(length)
        self.sequences: list[Sequence] = []

    def add(self, prompt: int = 20, limit: int = 400, **params: Any) -> tuple[Sequence, Any]:
        """A sequence that decodes its second token, and its drafter."""
        tokens = [(len(self.sequences) + i) % 31 + 1 for i in range(prompt)]
        asked = SamplingParams(seed=3, **params)
        sequence = Sequence(len(self.sequences), asked, tokens, prompt, frozenset())
        sequence.limit = limit
        self.sequences.append(sequence)
        self.go_on(sequence, *self.right(sequence, 1))
        return sequence, self.model.drafter(sequence)

    def right(self, sequence: Sequence, count: int) -> list[int]:
        """The next tokens of the sequence."""
        tokens = list(sequence.tokens)
        for _ in range(count):
            tokens.append(next_token(tokens, sequence.params))  # type: ignore[arg-type]
        return tokens[len(sequence.tokens) :]

    @staticmethod
    def go_on(sequence: Sequence, *tokens: int) -> None:
        sequence.tokens += tokens
        sequence.computed = sequence.total - 1

    def advance(self, *held: Sequence) -> None:
        """Draft for the sequences that hold slots of the large model; all, unless it says."""
        self.model.advance(held or self.sequences, self.asks)  # type: ignore[arg-type]

    def guessed(self, drafter: Mirror) -> Many[int]:
        return drafter.guess(31)[0]


def wrong(token: int) -> int:
    return token % 31 + 1


def test_it_guesses_what_the_large_model_draws() -> None:
    rig = Rig()
    sequence, drafter = rig.add()
    for _ in range(3):
        rig.advance()
        assert rig.guessed(drafter) == rig.right(sequence, 3)
        rig.go_on(sequence, *rig.right(sequence, 4))


def test_it_draws_with_the_parameters_of_the_request() -> None:
    drawn = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1}
    _, drafter = Rig().add(**drawn, repetition_penalty=1.3)
    binding = binding_of(drafter)
    assert binding.params == SamplingParams(seed=3, **drawn)  # type: ignore[arg-type]
    assert (binding.prompt, binding.output) == (
        drafter.sequence.tokens[:20],
        drafter.sequence.tokens[20:],
    )


def test_guesses_are_stale_once_the_sequence_has_further_tokens() -> None:
    rig = Rig()
    sequence, drafter = rig.add()
    rig.advance()
    rig.go_on(sequence, *rig.right(sequence, 1))
    assert rig.guessed(drafter) == ()


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_it_goes_on_after_guesses_that_were_right(accepted: int) -> None:
    """Also where the sequence continues with guesses alone: then the last one is computed again,
    because the next guess follows it."""
    rig = Rig()
    sequence, drafter = rig.add()
    rig.advance()
    guesses = rig.guessed(drafter)
    rig.go_on(sequence, *guesses[:accepted])
    rig.advance()
    assert rig.guessed(drafter) == rig.right(sequence, 3)


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_it_forgets_what_it_computed_of_a_wrong_guess(accepted: int) -> None:
    rig = Rig()
    sequence, drafter = rig.add()
    rig.advance()
    guesses = rig.guessed(drafter)
    rig.go_on(sequence, *guesses[:accepted], wrong(guesses[accepted]))
    rig.go_on(sequence, *rig.right(sequence, 2))  # in a step with another drafter's guesses
    rig.advance()
    assert rig.guessed(drafter) == rig.right(sequence, 3)


def test_pages_of_wrong_guesses_come_back() -> None:
    rig = Rig(length=6)
    sequence, drafter = rig.add(prompt=PAGE_TOKENS - 4)
    rig.advance()
    assert len(drafter.table.pages) == 2
    rig.go_on(sequence, wrong(rig.guessed(drafter)[0]))
    rig.asks.length = 0
    rig.advance()
    assert len(drafter.table.pages) == 1


def test_windowed_pages_that_the_newest_token_sees_stay() -> None:
    """A sequence may get no token in a step. Then its newest token is computed again."""
    rig = Rig(windows=(WindowMemory(16, 8),))
    sequence, drafter = rig.add(
        prompt=PAGE_TOKENS + 16 - 2
    )  # sees the first page; a guess does not
    for _ in range(2):
        rig.advance()
        assert rig.guessed(drafter) == rig.right(sequence, 3)


def test_no_guess_lies_at_the_limit() -> None:
    """Nothing is sampled at the last token, so a guess of it would be for nothing."""
    rig = Rig()
    _, drafter = rig.add(prompt=20, limit=23)
    rig.advance()
    assert len(rig.guessed(drafter)) == 1
    assert rig.executor.steps == 1


def test_it_drafts_nothing_for_a_sequence_that_waits() -> None:
    rig = Rig()
    sequence, _ = rig.add()
    sequence.paused = True
    rig.advance()
    assert rig.executor.steps == 0


def test_a_long_prompt_is_computed_in_parts_before_the_first_guess() -> None:
    rig = Rig()
    _, drafter = rig.add(prompt=150)
    for _ in range(2):
        rig.advance()
        assert not rig.guessed(drafter)
    rig.advance()
    assert [chunks[0][2] for chunks in rig.executor.plans] == [64, 64, 151 - 128, 1, 1]
    assert len(rig.guessed(drafter)) == 3


def test_a_preempted_sequence_is_computed_again_when_it_comes_back() -> None:
    rig = Rig()
    sequence, drafter = rig.add()
    rig.advance()
    rig.model.advance([None], rig.asks)  # type: ignore[arg-type]
    assert (drafter.slot, drafter.table.pages) == (-1, [])
    rig.advance()
    assert rig.guessed(drafter) == rig.right(sequence, 3)
    assert rig.executor.plans[-3] == [(0, 0, 21)]


def test_the_slot_of_a_sequence_that_ended_serves_the_next_one() -> None:
    rig = Rig(slots=1)
    first, _ = rig.add()
    rig.advance()
    first.end()
    second, drafter = rig.add()
    rig.advance()
    assert rig.guessed(drafter) == rig.right(second, 3)
    assert rig.model._mirrors == {second.id: drafter}


def test_a_sequence_beyond_its_context_gets_no_drafter() -> None:
    rig = Rig()
    assert rig.add(limit=SHAPE.context)[1] is not None
    assert rig.add(limit=SHAPE.context + 1)[1] is None


def test_a_step_that_binds_says_nothing_about_the_time_of_steps() -> None:
    """It also computes what came since the last guesses."""
    rig = Rig(length=1)
    rig.add()
    rig.advance()
    rig.advance()
    assert rig.asks.seconds == [None, None]
    rig.asks.length = 2
    rig.advance()
    rig.advance()
    assert rig.asks.seconds[:3] == [None] * 3
    assert isinstance(rig.asks.seconds[3], float)


def test_a_failure_ends_all_guesses_also_those_of_the_failed_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(step: int) -> None:
        if step == 1:
            raise ZeroDivisionError

    rig = Rig()
    rig.executor.before_step = fail
    _, drafter = rig.add()
    rig.advance()
    assert rig.guessed(drafter) == []
    assert "the draft model failed; it makes no more guesses" in caplog.text
    rig.advance()
    assert rig.executor.steps == 2
    assert rig.add()[1] is None
