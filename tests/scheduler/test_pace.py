"""Prompt tokens beside running streams, from simulated step times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.scheduler.pace import GAP, Pace

DECODE, TOKEN = 4e-3, 4e-4  # seconds


def seconds(decodes: int, prompt_tokens: int) -> float:
    """The time of a step on the simulated machine."""
    return (DECODE if decodes else 0.0) + TOKEN * prompt_tokens


def run(pace: Pace, decodes: int, steps: int) -> list[float]:
    """Step times of a long prompt beside `decodes` streams."""
    times = []
    for _ in range(steps):
        tokens = pace.allowance(decodes)
        times.append(seconds(decodes, tokens))
        pace.observe(decodes, tokens, times[-1])
    return times


def warm(max_gap: float | None = None) -> Pace:
    pace = Pace(max_gap)
    for _ in range(20):
        pace.observe(4, 0, DECODE)
    return pace


def test_steps_with_prefill_last_the_default_gap() -> None:
    times = run(warm(), 4, 50)
    assert max(times[1:]) <= GAP * DECODE
    assert min(times[1:]) > GAP * DECODE - TOKEN - 1e-9


def test_steps_with_prefill_last_the_requested_gap() -> None:
    times = run(warm(0.02), 4, 50)
    assert 0.02 - TOKEN - 1e-9 < min(times[1:]) <= max(times[1:]) <= 0.02


def test_the_first_chunk_is_small_before_any_step_was_timed() -> None:
    assert 1 <= Pace().allowance(4) <= 32


def test_prefill_continues_under_a_gap_that_cannot_be_met() -> None:
    assert run(warm(1e-6), 4, 3)[-1] > DECODE


def test_a_prompt_token_beside_streams_never_counts_less_than_in_a_long_step_of_prompts() -> None:
    """The decodes of a few steps were measured as too slow, so prompt tokens look cheap."""
    pace = warm()
    for _ in range(5):
        pace.observe(0, 512, seconds(0, 512))
        pace.observe(4, 16, 1.2 * DECODE)
    assert run(pace, 4, 1) == [pytest.approx(GAP * DECODE)]


def test_short_steps_of_prompts_say_nothing_about_tokens_beside_streams() -> None:
    pace = warm()
    for _ in range(5):
        pace.observe(0, 8, DECODE + seconds(0, 8))
    assert max(run(pace, 4, 20)[-5:]) > GAP * DECODE - 2 * TOKEN


def test_prompts_get_the_least_where_streams_are_preferred() -> None:
    pace = Pace(0.02, prefer_decode=True)
    for _ in range(20):
        assert pace.allowance(4) == 4
        pace.observe(4, 0, DECODE)
        pace.observe(4, 4, seconds(4, 4))


def test_one_slow_step_does_not_change_the_allowance() -> None:
    pace = warm()
    run(pace, 4, 20)
    before = pace.allowance(4)
    pace.observe(4, before, 1.0)
    pace.observe(4, 0, 1.0)
    assert pace.allowance(4) == before


def test_the_allowance_follows_changed_step_times() -> None:
    pace = warm(0.02)
    run(pace, 4, 20)
    before = pace.allowance(4)
    for _ in range(20):
        pace.observe(4, 10, DECODE + 10 * 2 * TOKEN)
    assert pace.allowance(4) == before // 2


def test_an_unseen_number_of_streams_uses_the_costs_of_the_nearest() -> None:
    pace = warm()
    run(pace, 4, 20)
    assert pace.allowance(5) == pace.allowance(4)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8), st.integers(0, 512), st.floats(0.0, 10.0, allow_subnormal=False)
        ).filter(lambda step: step[0] + step[1] > 0),
        max_size=60,
    ),
    st.one_of(st.none(), st.floats(1e-6, 10.0)),
    st.integers(1, 8),
)
def test_the_allowance_is_at_least_one_token(
    steps: list[tuple[int, int, float]], max_gap: float | None, decodes: int
) -> None:
    pace = Pace(max_gap)
    for step in steps:
        pace.observe(*step)
    assert pace.allowance(decodes) >= 1


def test_costs_of_idle_prefill_count_double_until_a_mixed_step_was_timed() -> None:
    pace = Pace()
    pace.observe(0, 500, 500 * TOKEN)
    pace.observe(4, 0, DECODE)
    assert pace.allowance(4) == pytest.approx((GAP - 1) * DECODE / (2 * TOKEN), abs=1)
    run(pace, 4, 3)
    known = pace.allowance(4)
    assert known == pytest.approx((GAP - 1) * DECODE / TOKEN, abs=1)
    for _ in range(20):
        pace.observe(0, 500, 500 * TOKEN / 3)  # prefill costs less on an idle engine
    assert pace.allowance(4) == known


def test_eyes_take_a_part_of_the_gap() -> None:
    pace = Pace()
    pace.observe(0, 500, 500 * TOKEN)
    pace.observe(4, 0, DECODE)
    spare = pace.spare_seconds(4)
    pace.prompts = 0.5
    assert pace.allowance(4) == pytest.approx((GAP - 1) * DECODE / (4 * TOKEN), abs=1)
    assert pace.spare_seconds(4) == spare
