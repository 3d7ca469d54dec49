"""Figures from known times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.extensions.bench.figures import (
    Spread,
    Stream,
    decode_rates,
    itl,
    overlap,
    prompt_rate,
    request_rate,
    tpot,
    ttft,
)

ONE = Stream(sent=10.0, arrivals=(11.0, 12.0, 13.0), prompt_tokens=100, tokens=3)
OTHER = Stream(sent=10.0, arrivals=(12.0, 14.0, 15.0), prompt_tokens=60, tokens=3)


def test_latencies() -> None:
    assert ttft([ONE, OTHER]) == Spread(p50=1.0, p95=2.0, p99=2.0, max=2.0)
    assert tpot([ONE, OTHER]) == Spread(p50=1.0, p95=1.5, p99=1.5, max=1.5)
    assert itl([ONE, OTHER]) == Spread(p50=1.0, p95=2.0, p99=2.0, max=2.0)


def test_rates() -> None:
    assert prompt_rate([ONE, OTHER]) == (100 + 60) / (12.0 - 10.0)
    assert request_rate([ONE, OTHER]) == 6 / (15.0 - 10.0)
    assert decode_rates([ONE, OTHER]) == [1 / (13.0 - 12.0)]  # both run from 12 to 13


def test_overlap_is_the_part_made_while_all_run() -> None:
    assert overlap([ONE]) == overlap([ONE, ONE]) == 1.0
    assert overlap([ONE, OTHER]) == 1 / 4  # only the output at 13
    alone = Stream(sent=0.0, arrivals=(1.0,), prompt_tokens=1, tokens=1)
    assert overlap([alone]) == 0.0


def test_decoding_in_parts() -> None:
    quick = [0.0, 1.0, 2.0, 3.0, 4.0]  # then twice as slow
    slow = [6.0, 8.0, 10.0, 12.0]
    pair = [Stream(0.0, (*quick, *slow), 1, 9), Stream(0.0, (*quick, *slow), 1, 9)]
    assert decode_rates(pair, 2) == [2.0, 1.0]
    assert decode_rates(pair) == [16 / 12]


def test_streams_that_did_not_run_at_once_have_no_rate() -> None:
    after = Stream(sent=10.0, arrivals=(14.0, 15.0), prompt_tokens=1, tokens=2)
    for streams, parts in (([ONE, after], 1), ([ONE], 3)):
        with pytest.raises(ValueError, match="did not run at the same time"):
            decode_rates(streams, parts)


def test_percentiles_are_durations_that_occurred() -> None:
    spread = Spread.of([float(number) for number in range(200, 0, -1)])
    assert spread == Spread(p50=100.0, p95=190.0, p99=198.0, max=200.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0)


@given(
    streams=st.integers(1, 8),
    steps=st.integers(2, 40),
    parts=st.integers(1, 2),
    step=st.integers(1, 100),
)
def test_streams_in_step_make_one_token_each_per_step(streams, steps, parts, step) -> None:
    moments = tuple(float(index * step) for index in range(1, steps * parts + 2))
    lot = [Stream(0.0, moments, 1, len(moments)) for _ in range(streams)]
    assert decode_rates(lot, parts) == pytest.approx([streams / step] * parts)
