"""Rates of steps, and estimates of the time until a place is free."""

import pytest

from heddle.sampling_params import SamplingParams
from heddle.scheduler.pace import Rate
from heddle.scheduler.room import Room, retry_after
from heddle.scheduler.sequence import Sequence


@pytest.mark.parametrize(
    ("work", "places", "rate", "seconds"),
    [
        ([100, 300], 1, 50.0, 4.0),
        ([100, 300], 2, 50.0, 8.0),
        ([100, 300], 3, 50.0, 12.0),
        ([7], 1, 50.0, 1.0),
        ([10**6], 1, 0.5, 600.0),
        ([100], 1, 0.0, 1.0),
        ([], 1, 50.0, 1.0),
    ],
)
def test_the_time_until_places_are_free(work, places, rate, seconds) -> None:
    assert retry_after(work, places, rate) == seconds


def test_the_rate_follows_recent_steps() -> None:
    rate = Rate()
    assert rate.tokens_per_second == 0.0
    rate.observe(8, 0.1)
    assert rate.tokens_per_second == pytest.approx(80.0)
    for _ in range(500):
        rate.observe(8, 0.4)
    assert rate.tokens_per_second == pytest.approx(20.0, rel=1e-3)


def test_the_usual_output_follows_recent_outputs() -> None:
    rate = Rate()
    assert rate.output is None
    rate.observe_output(40)
    assert rate.output == 40
    for _ in range(200):
        rate.observe_output(10)
    assert rate.output == pytest.approx(10)


@pytest.mark.parametrize(("most", "usual", "seconds"), [(40, None, 5.0), (40, 4, 1.4), (2, 4, 1.2)])
def test_a_sequence_is_expected_to_have_the_usual_output_within_its_limit(
    most: int, usual: int | None, seconds: float
) -> None:
    room = Room(slots=1, queue=0, context=1024, pages=1024)
    room.rate.observe(10, 1.0)
    if usual is not None:
        room.rate.observe_output(usual)
    sequence = Sequence(1, SamplingParams(max_tokens=most), [1] * 10, 10, frozenset())
    sequence.limit = room.limit_of(sequence)
    assert room.seconds_until(1, [sequence]) == pytest.approx(seconds)
