"""The guesses that a step computes, by their likelihood and by what steps cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.errors import InvalidRequestError
from heddle.parameters import Speculation
from heddle.sampling_params import SamplingParams
from heddle.scheduler.guessing import Counts
from heddle.scheduler.pace import Pace
from heddle.scheduler.sequence import Sequence
from heddle.scheduler.speculation import Speculator

if TYPE_CHECKING:
    from collections.abc import Sequence as Many


class Fixed:
    """Always guesses 1, 2, 3, ..., with one grade."""

    def __init__(self, grade: int = 2) -> None:
        self.grade = grade

    def append(self, tokens: Many[int]) -> None:
        pass

    def guess(self, most: int) -> tuple[Many[int], int]:
        return range(1, 1 + most), self.grade


def decoding(identity: int, **params: object) -> Sequence:
    sequence = Sequence(identity, SamplingParams(seed=0, **params), [5, 6], 1, frozenset())  # type: ignore[arg-type]
    sequence.limit, sequence.computed = 100, 1
    return sequence


def measured(decodes: int, alone: float, per_guess: float) -> Pace:
    pace = Pace(max_gap=1e9)
    for _ in range(9):
        pace.observe(decodes, 0, alone)
        for guesses in range(1, 32):
            pace.observe(decodes, 0, alone + guesses * per_guess, guesses)
        pace.observe(decodes, 0, alone)
    return pace


def speculator(pace: Pace, drafter: Fixed | None = None) -> Speculator:
    return Speculator({"fixed": lambda _: drafter or Fixed()}, pace, 31)


def learn(sequence: Sequence, tokens: Many[int], computed: int) -> None:
    assert sequence.guessing is not None
    sequence.guessing.learn(tokens, computed)


def teach(one: Speculator, sequence: Sequence, *, right: bool, times: int = 60) -> None:
    """Let the sequence see guesses of grade 2 and later that are right, or wrong."""
    for _ in range(times):
        one.guess([sequence], 30)
        learn(sequence, range(1, 33) if right else [9], 31 if right else 0)


def test_nothing_is_guessed_before_a_step_was_measured() -> None:
    assert speculator(Pace()).guess([decoding(0)], 30) == {}


@pytest.mark.parametrize(
    ("cost", "right", "least", "most"),
    [
        (0.0, True, 20, 31),
        (0.05, True, 20, 31),
        (0.5, True, 2, 31),
        (0.3, False, 0, 0),
        (1.1, True, 0, 0),
    ],
)
def test_as_many_as_pay(cost: float, right: bool, least: int, most: int) -> None:
    """`cost` is that of a guess, relative to a step."""
    one, sequence = speculator(measured(1, 1.0, cost)), decoding(0)
    teach(one, sequence, right=right)
    guesses = one.guess([sequence], 31).get(0, ())
    assert least <= len(guesses) <= most
    assert list(guesses) == list(range(1, 1 + len(guesses)))


def test_sequences_learn_apart_and_lend_newcomers_a_first_estimate() -> None:
    one, good, bad = speculator(measured(2, 1.0, 0.2)), decoding(0), decoding(1)
    teach(one, good, right=True)
    teach(one, bad, right=False)
    assert set(one.guess([good, bad], 30)) == {0}


def test_guesses_that_were_not_computed_teach_too() -> None:
    """The next token shows whether the first guess was right, at no cost."""
    one, sequence = speculator(measured(1, 1.0, 0.4)), decoding(0)
    teach(one, sequence, right=False)
    assert one.guess([sequence], 30) == {}
    for _ in range(30):
        one.guess([sequence], 30)
        learn(sequence, [1], 0)
    assert one.guess([sequence], 30)


def test_a_request_that_asks_gets_its_length_and_one_that_declines_none() -> None:
    one = speculator(measured(2, 1.0, 5.0))
    asks, declines = (
        decoding(0, speculation=Speculation("fixed", 4)),
        decoding(1, speculation=Speculation("off")),
    )
    assert {k: list(v) for k, v in one.guess([asks, declines], 30).items()} == {0: [1, 2, 3, 4]}
    assert one.guess([asks], 2) == {0: range(1, 3)}


def test_no_guess_lies_at_the_limit() -> None:
    one, sequence = speculator(measured(1, 1.0, 0.0)), decoding(0)
    teach(one, sequence, right=True)
    sequence.limit = 5  # tokens 2, 3 and 4 are still to come; nothing is sampled after token 4
    assert len(one.guess([sequence], 30)[0]) == 2
    sequence.limit = 3
    assert one.guess([sequence], 30) == {}


def test_streams_do_not_wait_longer_than_the_gap() -> None:
    pace = measured(2, 1.0, 0.1)
    one, sequences = speculator(pace), [decoding(0), decoding(1)]
    for sequence in sequences:
        teach(one, sequence, right=True)
    assert sum(map(len, one.guess(sequences, 30).values())) > 4
    pace._max_gap = 1.25
    assert sum(map(len, one.guess(sequences, 30).values())) == 2


def test_usage_counts_what_was_computed() -> None:
    one, sequence = speculator(measured(1, 1.0, 0.0)), decoding(0)
    one.guess([sequence], 30)
    learn(sequence, [1, 2, 7], 5)
    assert sequence.guessing is not None
    assert sequence.guessing.counts == Counts(5, 2)
    assert one.counts == Counts(5, 2)


def test_an_unknown_drafter_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match="'oracle'; this model has fixed"):
        speculator(Pace()).check(decoding(0, speculation=Speculation("oracle")))


def test_the_time_without_guesses_stays_known() -> None:
    pace = measured(1, 1.0, 0.1)
    for _ in range(64):
        assert pace.guess_seconds(1, 3) == pytest.approx(1.3)
        pace.observe(1, 0, 1.3, 3)
    assert pace.guess_seconds(1, 3) is None
    pace.observe(1, 0, 1.0)
    assert pace.guess_seconds(1, 3) == pytest.approx(1.3)


def test_costs_lie_on_lines_between_those_measured() -> None:
    pace = Pace()
    pace.observe(2, 0, 1.0)
    assert pace.guess_seconds(3, 1) is None
    assert pace.guess_seconds(2, 2) == pytest.approx(1.25)
    assert pace.guess_seconds(2, 3) == pytest.approx(4.0), "not more at first than two"
    pace.observe(2, 0, 1.2, 4)
    assert [pace.guess_seconds(2, n) for n in (2, 4, 6)] == pytest.approx([1.1, 1.2, 1.3])
    assert pace.guess_seconds(2, 10) == pytest.approx(1.5)
    assert pace.guess_seconds(2, 11) == pytest.approx(12.2), "at most twice as many as known"
    pace.observe(2, 0, 1.1, 8)  # less than with 4: costs never fall
    assert pace.guess_seconds(2, 8) == pytest.approx(1.2)


def test_a_lone_stream_may_take_longer_than_the_gap() -> None:
    """Nobody else waits for its step."""
    pace = measured(1, 1.0, 0.1)
    one, sequence = speculator(pace), decoding(0)
    teach(one, sequence, right=True)
    pace._max_gap = 1.25
    assert len(one.guess([sequence], 30)[0]) > 4


def test_guesses_count_once() -> None:
    """A step beside a prompt has no guesses: those of the step before say nothing about it."""
    one, sequence = speculator(measured(1, 1.0, 0.0)), decoding(0)
    one.guess([sequence], 30)
    learn(sequence, [1], 0)
    [drafting] = sequence.guessing.draftings  # type: ignore[union-attr]
    known = list(drafting.chances)
    learn(sequence, [9], 0)
    assert drafting.chances == known


def test_guesses_after_a_wrong_one_say_nothing() -> None:
    one, sequence = speculator(measured(1, 1.0, 0.0)), decoding(0)
    one.guess([sequence], 30)
    learn(sequence, [1, 9, 9, 9], 0)  # another drafter was right about all of them
    [drafting] = sequence.guessing.draftings  # type: ignore[union-attr]
    right, wrong, *unknown = drafting.chances[2:]
    assert right is not None
    assert wrong is not None
    assert set(unknown) == {None}


def test_the_drafter_with_the_likeliest_guess_is_chosen() -> None:
    drafters = {str(grade): lambda _, grade=grade: Fixed(grade) for grade in (3, 9, 5)}
    one, sequence = Speculator(drafters, measured(1, 1.0, 0.0), 31), decoding(0)
    one.guess([sequence], 30)
    assert sequence.guessing is not None
    assert sequence.guessing.best is sequence.guessing.draftings[1]


def test_a_newcomer_expects_what_others_saw() -> None:
    one = speculator(measured(1, 1.0, 0.2))
    assert one.guess([decoding(0)], 30)
    teach(one, decoding(1), right=False, times=300)
    assert one.guess([decoding(2)], 30) == {}


def test_what_a_recurrent_model_computes_again_costs_too() -> None:
    """Two guesses pay, but not if the right one of them is computed twice."""
    counts = []
    for recurrent in (False, True):
        pace = measured(1, 1.0, 0.25)
        one = Speculator({"fixed": lambda _: Fixed(9)}, pace, 31, recurrent=recurrent)
        counts.append(len(one.guess([decoding(0)], 30)[0]))
    assert counts[0] > counts[1] > 0


def test_a_draft_model_is_asked_for_what_its_own_time_allows() -> None:
    one, sequence = speculator(measured(1, 1.0, 0.0)), decoding(0)
    one.guess([sequence], 30)
    lengths = [one.draft_length("fixed", [sequence], cost) for cost in (0.0, 0.3, 2.0)]
    assert lengths[0] > lengths[1] > lengths[2] == 0


def test_a_draft_model_that_does_not_pay_is_tried_now_and_then() -> None:
    one, sequence = speculator(measured(1, 1.0, 0.0)), decoding(0)
    one.guess([sequence], 30)
    lengths = [one.draft_length("fixed", [sequence], 9.0) for _ in range(130)]
    assert [index for index, length in enumerate(lengths) if length] == [64, 129]
    assert lengths[64] == 2


def test_known_output_is_guessed_before_anything_else() -> None:
    one, sequence = speculator(measured(1, 1.0, 0.01), Fixed(15)), decoding(1)
    sequence.known = [6, 40, 41, 42]
    assert one.guess([sequence], 31) == {1: [40, 41, 42]}
    sequence.tokens += [40, 41]
    assert one.guess([sequence], 31) == {1: [42]}
    sequence.tokens += [42, 7]
    assert one.guess([sequence], 31)[1][:3] == range(1, 4), "then as without it"


def test_known_output_is_guessed_if_the_request_wants_no_guesses() -> None:
    sequence = decoding(1, speculation=Speculation("off"))
    sequence.known = [6, 40, 41]
    assert speculator(measured(1, 1.0, 0.01)).guess([sequence], 31) == {1: [40, 41]}


def test_known_output_that_turns_out_wrong_is_guessed_no_more() -> None:
    one, sequence = speculator(measured(1, 1.0, 0.01)), decoding(1, speculation=Speculation("off"))
    sequence.known = [6, 40, 41, 42]
    assert one.guess([sequence], 31)
    sequence.tokens += [40, 9]
    assert one.guess([sequence], 31) == {}


def test_known_output_delays_other_streams_no_more_than_a_prompt_does() -> None:
    pace = Pace(max_gap=2.0)
    for _ in range(9):
        pace.observe(2, 0, 1.0)
        pace.observe(2, 10, 2.0)  # ten tokens of a prompt make the step a second longer
    sequences = [decoding(1, speculation=Speculation("off")) for _ in range(2)]
    sequences[0].known = [6, *range(40, 71)]
    guessed = speculator(pace).guess(sequences, 31)
    assert 4 <= len(guessed[1]) <= 10
