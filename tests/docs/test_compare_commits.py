"""What the comparison of two commits says of its ratios."""

from __future__ import annotations

import json

import pytest

from compare_commits import HISTORY, compare, exit_code, interval, verdict


@pytest.mark.parametrize(
    ("count", "places"),
    [(5, (0, 4)), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (12, (2, 9)), (20, (5, 14))],
)
def test_the_interval_is_that_of_the_sign_test(count: int, places: tuple[int, int]) -> None:
    """The places are those of published tables of order statistics for the median, 95%."""
    low, high = interval([float(n) for n in reversed(range(count))])
    assert (low, high) == places


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([0.90, 0.91, 0.92, 0.93, 0.94, 0.95], "slower"),
        ([0.98, 0.99, 1.0, 1.0, 1.01, 1.2], "as fast"),
        ([0.90, 0.99, 1.0, 1.0, 1.01, 1.2], "cannot tell"),
        ([0.5, 0.5, 0.5, 0.5, 0.5], "cannot tell"),  # five rounds are too few
    ],
)
def test_the_verdict_of_a_measure(ratios: list[float], said: str) -> None:
    rounds = [({"decode": 10.0}, {"decode": 10.0 * ratio}) for ratio in ratios]
    found = compare(rounds, 0.98)["decode"]
    assert found["verdict"] == said
    assert verdict(*interval(ratios), 0.98, len(ratios)) == said


def test_the_exit_code() -> None:
    assert exit_code(["as fast", "as fast"]) == 0
    assert exit_code(["cannot tell", "slower"]) == 1
    assert exit_code(["cannot tell", "as fast"]) == 77


def test_each_line_of_the_history_has_a_machine() -> None:
    for line in HISTORY.read_text("utf-8").splitlines():
        found = json.loads(line)
        assert found["machine"].keys() == {"cpu", "cores", "levels", "gb"}
        assert len(found["commits"]) == 2
