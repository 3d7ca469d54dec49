"""The native sampler against the NumPy reference of the chain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle import _native
from heddle.runner.cpu import make_sampler
from heddle.sampling.philox import uniform
from heddle.sampling.reference import filtered, sample
from heddle.types import SamplingParams


def native(params, prompt, output):
    sampler = make_sampler(params)
    sampler.observe_prompt(np.array(prompt, np.int32))
    sampler.observe_output(np.array(output, np.int32))
    return sampler


def test_the_random_numbers_are_the_references():
    rng = np.random.default_rng(0)
    for _ in range(200):
        seed, index = int(rng.integers(2**63)) * 2 + 1, int(rng.integers(2**32))
        assert _native.uniform(seed, index) == uniform(seed, index)


def near_a_boundary(logits, params, prompt, output):
    """Whether a float32 rounding could move the draw, or the edge of what is kept, by a token."""
    ids, probabilities = filtered(logits, params, prompt, output)
    for change in (1 - 1e-5, 1 + 1e-5):
        nudged = replace(
            params, top_p=min(1.0, params.top_p * change), min_p=min(1.0, params.min_p * change)
        )
        if params.top_p < 1 and len(filtered(logits, nudged, prompt, output)[0]) != len(ids):
            return True
    draw = uniform(params.seed, len(output))
    return len(ids) > 1 and np.abs(np.cumsum(probabilities) - draw).min() < 1e-5


@st.composite
def requests(draw):
    chance = st.booleans()
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 5, 40, 5000])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.9])),
        repetition_penalty=1.3 if draw(chance) else 1.0,
        presence_penalty=0.7 if draw(chance) else 0.0,
        frequency_penalty=-0.4 if draw(chance) else 0.0,
        logit_bias={3: 4.0, 7: -100.0} if draw(chance) else {},
        logprobs=draw(st.sampled_from([None, 0, 1, 20])),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@settings(deadline=None, max_examples=300)
@given(
    params=requests(),
    vocabulary=st.sampled_from([8, 300, 3000]),
    spread=st.sampled_from([0.1, 2.0, 8.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_picks_what_the_reference_picks(params, vocabulary, spread, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, vocabulary).astype(np.float32)
    prompt, output = ([int(t) for t in rng.integers(0, vocabulary, n)] for n in (9, 5))
    expected = sample(logits, params, prompt, output)
    token, logprob, top = native(params, prompt, output).pick("auto", logits)
    if token != expected.token:
        assert near_a_boundary(logits, params, prompt, output)
        return
    if params.logprobs is not None:
        assert logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert [t for t, _ in top] == [t for t, _ in expected.top]
        np.testing.assert_allclose([p for _, p in top], [p for _, p in expected.top], atol=1e-4)


@pytest.mark.parametrize("logprobs", [None, 0, 5])
def test_ties_go_to_the_lower_id(logprobs):
    logits = np.zeros(1000, np.float32)
    greedy = SamplingParams(temperature=0, logprobs=logprobs, seed=0)
    token, _, top = native(greedy, [], []).pick("auto", logits)
    assert token == 0
    assert [t for t, _ in top] == list(range(logprobs or 0))
    first = SamplingParams(top_k=1, seed=5)
    assert native(first, [], []).pick("auto", logits)[0] == 0


def test_top_p_reaches_exactly_the_needed_mass():
    """Half, a quarter, an eighth...: the set is known without rounding."""
    logits = np.log(0.5 ** np.arange(1, 20)).astype(np.float32)
    drawn = set()
    for seed in range(400):
        params = SamplingParams(top_p=0.8, seed=seed)
        drawn.add(native(params, [], []).pick("auto", logits)[0])
    assert drawn == {0, 1, 2}


def test_each_pick_moves_the_counter_and_the_penalties():
    logits = np.zeros(50, np.float32)
    params = SamplingParams(temperature=0, frequency_penalty=1.0, seed=0)
    sampler = native(params, [], [])
    assert [sampler.pick("auto", logits)[0] for _ in range(50)] == list(range(50))
    resumed = native(SamplingParams(seed=9), [], [4, 4])
    fresh = native(SamplingParams(seed=9), [], [])
    fresh.pick("auto", logits), fresh.pick("auto", logits)
    assert resumed.pick("auto", logits) == fresh.pick("auto", logits)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isa", _native.isa_levels())
def test_one_logit_that_is_not_finite_means_no_token(isa, value):
    greedy, drawn = SamplingParams(temperature=0, seed=1), SamplingParams(seed=1, logprobs=3)
    for place in (0, 1, 17, 1024, 2998, 2999):
        logits = np.linspace(-5, 5, 3000, dtype=np.float32)
        assert native(drawn, [], []).pick(isa, logits)[0] >= 0
        logits[place] = value
        for params in (greedy, drawn, replace(drawn, top_p=0.9), replace(drawn, top_k=5)):
            assert native(params, [], []).pick(isa, logits) == (-1, 0.0, [])


def test_a_penalty_that_leaves_the_range_of_floats_means_no_token():
    logits = np.full(10, 3e38, np.float32)
    params = SamplingParams(seed=1, repetition_penalty=0.01)
    assert native(params, [3], []).pick("auto", logits)[0] == -1


def test_a_failed_pick_leaves_the_sampler_as_it_was():
    logits = np.zeros(50, np.float32)
    params = SamplingParams(seed=9, frequency_penalty=1.0)
    disturbed, plain = native(params, [], []), native(params, [], [])
    disturbed.pick("auto", np.full(50, np.nan, np.float32))
    assert [disturbed.pick("auto", logits) for _ in range(5)] == [
        plain.pick("auto", logits) for _ in range(5)
    ]


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_levels_agree(isa):
    rng = np.random.default_rng(4)
    for seed in range(50):
        logits = rng.normal(0, 3, 5000).astype(np.float32)
        params = SamplingParams(seed=seed, temperature=0.8, top_p=0.9, logprobs=3)
        plain = SamplingParams(seed=seed, temperature=0.8, logprobs=3)
        for p in (params, plain):
            assert native(p, [], []).pick(isa, logits) == native(p, [], []).pick("portable", logits)
