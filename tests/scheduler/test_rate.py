"""Rates of steps, and estimates of the time until a place is free."""

import pytest

from heddle.scheduler.rate import Rate, retry_after


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
