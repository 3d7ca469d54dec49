"""The reference chain: order, temperature, draw, logprobs; and the oldest samplers in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.extensions.reference.philox import uniform
from heddle.extensions.reference.sampler import Past, filtered, log_softmax, sample
from heddle.sampling_params import SamplingParams

# Few distinct values, so that ties are common.
LOGITS = st.lists(st.integers(-20, 20).map(lambda n: n / 2), min_size=1, max_size=40).map(
    lambda values: np.array(values, np.float32)
)


def by_rank(logits: np.ndarray) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def kept(logits: np.ndarray, **settings: Any) -> list[int]:
    return filtered(logits, SamplingParams(**settings), Past())[0].tolist()


@given(LOGITS, st.integers(1, 50))
def test_top_k_keeps_the_highest_and_the_lower_id_of_a_tie(logits: np.ndarray, k: int) -> None:
    assert kept(logits, top_k=k) == by_rank(logits)[:k]


@given(LOGITS, st.floats(0.01, 0.999))
def test_top_p_keeps_the_shortest_sufficient_prefix(logits: np.ndarray, top_p: float) -> None:
    ids = kept(logits, top_p=top_p)
    probabilities = np.exp(log_softmax(logits))
    assert ids == by_rank(logits)[: len(ids)]
    assert math.fsum(probabilities[ids]) >= top_p - 1e-12
    assert math.fsum(probabilities[ids[:-1]]) < top_p + 1e-12


@given(LOGITS, st.floats(0.001, 1))
def test_min_p_splits_at_its_share_of_the_likeliest(logits: np.ndarray, min_p: float) -> None:
    ids = set(kept(logits, min_p=min_p))
    relative = np.exp(logits.astype(np.float64) - logits.max())
    assert ids == set(np.flatnonzero(relative >= min_p).tolist())


@given(LOGITS, st.floats(0.001, 1))
def test_top_a_splits_at_its_share_of_the_squared_likeliest(
    logits: np.ndarray, top_a: float
) -> None:
    p = np.exp(log_softmax(logits.astype(np.float64)))
    near = {int(token) for token in np.flatnonzero(np.isclose(p, top_a * p.max() ** 2))}
    expected = set(np.flatnonzero(p >= top_a * p.max() ** 2).tolist())
    assert set(kept(logits, top_a=top_a)) - near == expected - near


@given(LOGITS, st.integers(1, 10), st.floats(0.1, 0.99), st.floats(0, 1))
def test_truncations_compose_in_order(
    logits: np.ndarray, top_k: int, top_p: float, min_p: float
) -> None:
    ids = np.array(kept(logits, top_k=top_k))
    ids = ids[kept(logits[ids], top_p=top_p)]
    ids = ids[kept(logits[ids], min_p=min_p)]
    assert kept(logits, top_k=top_k, top_p=top_p, min_p=min_p) == ids.tolist()


@given(LOGITS, st.floats(0.05, 5), st.integers(0, 10), st.floats(0.1, 1))
def test_temperature_reweighs_what_truncation_at_temperature_one_kept(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    ids, probabilities = filtered(logits, params, Past())
    assert ids.tolist() == kept(logits, top_k=top_k, top_p=top_p)
    expected = np.exp(log_softmax(logits[ids].astype(np.float64) / temperature))
    np.testing.assert_allclose(probabilities, expected, rtol=1e-9, atol=1e-300)


def test_candidates_stay_in_id_order_without_truncation() -> None:
    logits = np.array([1, 3, 2], np.float32)
    assert kept(logits) == [0, 1, 2]
    assert kept(logits, top_k=3) == [1, 2, 0]


def test_a_tiny_temperature_is_the_greedy_choice() -> None:
    ids, probabilities = filtered(
        np.array([1, 3, 2], np.float32), SamplingParams(temperature=1e-310), Past()
    )
    assert ids[probabilities == 1].tolist() == [1]


def test_bias_then_repetition_then_presence_and_frequency() -> None:
    params = SamplingParams(
        logit_bias={0: 1.0, 3: -5.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    logits = np.array([3, -1, 2, 2, 7], np.float32)
    ids, probabilities = filtered(logits, params, Past(prompt=[0, 3], output=[1, 1, 2]))
    # 0: (3+1)/2, prompt only; 1: -1*2 - 0.5 - 2*0.25; 2: 2/2 - 0.5 - 0.25; 3: (2-5)*2; 4: untouched
    adjusted = np.array([2.0, -3.0, 0.25, -6.0, 7.0])
    assert ids.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(probabilities, np.exp(log_softmax(adjusted)), rtol=1e-12)


def test_greedy_takes_the_lower_id_of_a_tie_after_penalties() -> None:
    logits = np.array([0, 4, 4, 5], np.float32)
    greedy = SamplingParams(temperature=0, presence_penalty=1.0)
    assert sample(logits, greedy, Past()).token == 3
    assert sample(logits, greedy, Past(output=[3])).token == 1
    assert sample(logits, greedy, Past(prompt=[3])).token == 3


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    params = SamplingParams(temperature=0, logit_bias={0: 100.0}, logprobs=3)
    result = sample(logits, params, Past())
    total = sum(math.exp(x) for x in (1, 3, 3, 2))
    assert result.token == 0
    assert result.logprob == pytest.approx(1 - math.log(total), abs=1e-12)
    assert [token for token, _ in result.top] == [1, 2, 3]
    assert result.top[0][1] == pytest.approx(3 - math.log(total), abs=1e-12)


def test_no_logprobs_unless_asked() -> None:
    result = sample(np.zeros(3, np.float32), SamplingParams(temperature=0), Past())
    assert math.isnan(result.logprob)
    assert result.top == ()


def test_the_draw_inverts_the_cumulative_distribution() -> None:
    logits = np.log(np.array([0.1, 0.6, 0.3])).astype(np.float32)
    for settings, order in (({}, [0, 1, 2]), ({"top_k": 3}, [1, 2, 0])):
        limits = np.cumsum(np.array([0.1, 0.6, 0.3])[order])
        for seed in range(200):
            params = SamplingParams(seed=seed, **settings)
            expected = order[int((uniform(seed, 1) >= limits).sum())]
            assert sample(logits, params, Past(output=[0])).token == expected


def test_an_impossible_token_is_never_drawn() -> None:
    logits = np.array([-np.inf, 0, -np.inf], np.float32)
    assert {sample(logits, SamplingParams(seed=s), Past()).token for s in range(50)} == {1}


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 1), (1 / 3, 2), (2 / 3, 3), (1 - 2**-24, 3)])
def test_a_draw_on_a_boundary_takes_the_token_after_it(
    draw: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.extensions.reference.sampler.uniform", lambda seed, index: draw)
    logits = np.array([-np.inf, 0, 0, 0], np.float32)
    assert sample(logits, SamplingParams(seed=0), Past()).token == expected


@pytest.mark.parametrize("vary", ["seed", "index"])
def test_draws_follow_the_distribution(vary: str) -> None:
    """Chi-square with 5 degrees of freedom; 20.5 is its 99.9th percentile."""
    logits = np.array([0, 1, -1, 2, 0.5, -3, 1.5], np.float32)
    draws, settings = 4000, {"temperature": 1.3, "top_k": 6}
    ids, probabilities = filtered(logits, SamplingParams(**settings), Past())
    counts = np.zeros(len(logits))
    for i in range(draws):
        seed, index = (i, 0) if vary == "seed" else (42, i)
        counts[
            sample(logits, SamplingParams(seed=seed, **settings), Past(output=[0] * index)).token
        ] += 1
    expected = probabilities * draws
    assert counts.sum() == counts[ids].sum()
    assert ((counts[ids] - expected) ** 2 / expected).sum() < 20.5
