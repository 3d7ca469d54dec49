"""Each sampler of the reference against its published definition, written out a second time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.extensions.reference.philox import uniform
from heddle.extensions.reference.sampler import Past, adapted_mu, filtered, log_softmax, sample
from heddle.sampling_params import SamplingParams, Stage
from heddle.token_rules import TokenRules, TokenSequences

# Few distinct values, so that ties are common.
LOGITS = st.lists(st.integers(-20, 20).map(lambda n: n / 2), min_size=1, max_size=40).map(
    lambda values: np.array(values, np.float32)
)
TOKENS = st.lists(st.integers(0, 3), max_size=24)
PLAIN = SamplingParams()


def kept(logits: np.ndarray, past: Past = Past(), **settings: Any) -> list[int]:  # noqa: B008
    return filtered(logits, SamplingParams(**settings), past)[0].tolist()


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(logits))


# --- what cuts off -------------------------------------------------------------------------------


@given(LOGITS, st.floats(0.01, 0.999))
def test_typical_p_takes_the_least_surprising_surprises_first(
    logits: np.ndarray, typical_p: float
) -> None:
    p = probabilities(logits)
    entropy = -math.fsum(x * math.log(x) for x in p if x > 0)
    ids = kept(logits, typical_p=typical_p)
    deviation = {i: abs(-log_softmax(logits)[i] - entropy) for i in range(len(logits))}
    left_out = set(deviation) - set(ids)
    worst = max(deviation[i] for i in ids)
    assert all(deviation[i] >= worst - 1e-9 for i in left_out)
    assert math.fsum(p[ids]) >= typical_p - 1e-12
    without_worst = [i for i in ids if deviation[i] < worst - 1e-9]
    assert math.fsum(p[without_worst]) < typical_p + 1e-12
    assert ids == sorted(ids, key=lambda i: (-logits[i], i))


def test_typical_p_can_leave_out_the_likeliest() -> None:
    """One token of probability 0.4 and sixty of 0.01: the entropy is nearer to the small ones."""
    logits = np.log(np.array([0.4, *[0.01] * 60])).astype(np.float32)
    assert kept(logits, typical_p=0.295) == list(range(1, 31))


@given(LOGITS, st.floats(0.05, 4))
def test_top_n_sigma_splits_at_so_many_deviations(logits: np.ndarray, n: float) -> None:
    values = logits.astype(np.float64)
    mean = math.fsum(values) / len(values)
    sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values))
    ids = set(kept(logits, top_n_sigma=n))
    for token, logit in enumerate(values):
        assert (token in ids) or logit < values.max() - n * sigma + 1e-9
        assert (token not in ids) or logit > values.max() - n * sigma - 1e-9


@given(LOGITS, st.floats(0.2, 5))
def test_top_n_sigma_keeps_the_same_at_any_temperature(
    logits: np.ndarray, temperature: float
) -> None:
    after = (Stage.TEMPERATURE, Stage.TOP_N_SIGMA)
    ids = kept(logits, top_n_sigma=1.0, temperature=temperature, samplers=after)
    values = logits.astype(np.float64)
    if np.abs(values - (values.max() - values.std())).min() > 1e-9:
        assert ids == kept(logits, top_n_sigma=1.0)


@given(LOGITS, st.floats(0.01, 0.6), st.integers(0, 500))
def test_xtc_leaves_the_least_likely_of_the_top_choices(
    logits: np.ndarray, threshold: float, seed: int
) -> None:
    ids = kept(logits, xtc_probability=1.0, xtc_threshold=threshold, seed=seed)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    top = [i for i in order if probabilities(logits)[i] >= threshold]
    assert ids == sorted(set(range(len(logits))) - set(top[:-1]))


def test_xtc_acts_with_its_probability_and_its_own_numbers() -> None:
    logits, acted = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32), []
    for seed in range(2000):
        acted.append(0 not in kept(logits, xtc_probability=0.3, xtc_threshold=0.25, seed=seed))
        assert acted[-1] == (uniform(seed, 0, 1) < 0.3)
    # Binomial: 600 on average, standard deviation 20.5.
    assert 600 - 68 < sum(acted) < 600 + 68
    draws = np.array([uniform(seed, 0) for seed in range(2000)])
    assert abs(np.corrcoef(draws, acted)[0, 1]) < 0.08


def test_xtc_after_a_cut_keeps_best_first() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.4, 0.3])).astype(np.float32)
    assert kept(logits, top_k=3, xtc_probability=1.0, xtc_threshold=0.3, seed=0) == [3, 1]


# --- temperature ---------------------------------------------------------------------------------


@given(LOGITS, st.floats(0.1, 2), st.floats(0.05, 3), st.floats(0.2, 3))
def test_dynamic_temperature_follows_the_normalised_entropy(
    logits: np.ndarray, temperature: float, reach: float, exponent: float
) -> None:
    p = probabilities(logits)
    entropy = -math.fsum(x * math.log(x) for x in p if x > 0)
    low, high = max(0.0, temperature - reach), temperature + reach
    share = entropy / math.log(len(p)) if len(p) > 1 else 0.0
    expected = low + (high - low) * share**exponent
    settings = {"dynatemp_range": reach, "dynatemp_exponent": exponent}
    _, got = filtered(logits, SamplingParams(temperature=temperature, **settings), Past())
    if len(p) > 1 and expected > 0.02:
        np.testing.assert_allclose(
            got, probabilities(logits.astype(np.float64) / expected), rtol=1e-6, atol=1e-12
        )


def test_dynamic_temperature_ranges_from_certain_to_uniform() -> None:
    params = SamplingParams(temperature=1.0, dynatemp_range=0.5)
    _, even = filtered(np.zeros(9, np.float32), params, Past())
    np.testing.assert_allclose(even, np.full(9, 1 / 9))
    logits = np.array([30, 29, 0, 0], np.float32)  # all but certain: near the lower end, 0.5
    cool = filtered(logits, replace(params, dynatemp_exponent=20.0), Past())[1]
    np.testing.assert_allclose(cool[0] / cool[1], math.exp(1 / 0.5), rtol=1e-3)


# --- mirostat ------------------------------------------------------------------------------------


@given(LOGITS, st.floats(-1, 12))
def test_mirostat_bounds_the_surprise(logits: np.ndarray, mu: float) -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=3.0)
    ids = set(filtered(logits, params, Past(mu=mu))[0].tolist())
    surprise = -log_softmax(logits) / math.log(2)
    assert ids
    for token, bits in enumerate(surprise):
        assert (token in ids) or bits > mu - 1e-9
        assert (token not in ids) or bits <= mu + 1e-9 or bits == surprise.min()


def test_mirostat_begins_at_twice_its_aim_and_moves_by_the_error() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])).astype(np.float32)
    params = SamplingParams(mirostat=2, mirostat_tau=1.25, mirostat_eta=0.5, seed=0)
    assert filtered(logits, params, Past())[0].tolist() == [0, 1]  # at most 2.5 bits
    # The second has 2 bits before the cut, whatever it has after it.
    assert adapted_mu(logits, params, Past(), 1) == pytest.approx(2.5 - 0.5 * (2 - 1.25), abs=1e-6)
    assert adapted_mu(logits, params, Past(mu=9.0), 3) == pytest.approx(
        9 - 0.5 * (4 - 1.25), abs=1e-6
    )


def test_mirostat_reaches_its_aim() -> None:
    """Mean surprise over many tokens of one Zipf-like distribution."""
    logits = (-1.1 * np.log(np.arange(1, 2001))).astype(np.float32)
    params = SamplingParams(mirostat=2, mirostat_tau=3.5, mirostat_eta=0.1, seed=5)
    mu, bits = None, []
    surprise = -log_softmax(logits) / math.log(2)
    for i in range(800):
        past = Past(output=[0] * i, mu=mu)
        token = sample(logits, params, past).token
        mu = adapted_mu(logits, params, past, token)
        bits.append(surprise[token])
    assert np.mean(bits[100:]) == pytest.approx(3.5, abs=0.15)


def test_mirostat_takes_the_place_of_what_cuts_off() -> None:
    logits = np.array([3, 2, 1, 0], np.float32)
    others = {"top_k": 1, "top_p": 0.1, "min_p": 0.9, "typical_p": 0.1, "top_n_sigma": 0.1}
    assert kept(logits, mirostat=2, mirostat_tau=20.0, **others) == [0, 1, 2, 3]


# --- penalties -----------------------------------------------------------------------------------


def score_changes(size: int, past: Past, **settings: Any) -> np.ndarray:
    """The changes that a chain makes to logits that are all 1, from the probabilities."""
    p = filtered(np.ones(size, np.float32), SamplingParams(**settings), past)[1]
    return np.log(p) - np.log(p).max()


@given(TOKENS, TOKENS, st.integers(-1, 30))
def test_repetition_looks_back_so_far_and_the_others_at_the_output(
    prompt: list[int], output: list[int], last_n: int
) -> None:
    tokens = prompt + output
    window = tokens if last_n < 0 else tokens[len(tokens) - min(last_n, len(tokens)) :]
    changes = score_changes(
        5,
        Past(prompt, output),
        repetition_penalty=2.0,
        repeat_last_n=last_n,
        presence_penalty=0.25,
        frequency_penalty=0.125,
    )
    for token in range(4):
        expected = -0.5 * (token in window) - 0.125 * output.count(token)
        expected -= 0.25 * (token in output)
        assert changes[token] - changes[4] == pytest.approx(expected, abs=1e-9)


def plain_repetitions(
    tokens: list[int], shortest: int, breakers: list[list[int]]
) -> dict[int, int]:
    """For each token the longest run before an occurrence of it that the tokens end with too."""
    free = tokens
    for cut in range(len(tokens) + 1):  # the shortest end that no breaker touches
        free = tokens[cut:]
        touches = any(
            tokens[i : i + len(b)] == b and i + len(b) > cut
            for b in breakers
            for i in range(len(tokens))
        )
        if not touches:
            break
    found: dict[int, int] = {}
    for i, length in itertools.product(range(len(tokens)), range(1, len(free) + 1)):
        run = tokens[len(tokens) - length :]
        if i >= length and tokens[i - length : i] == run and [tokens[i]] not in breakers:
            found[tokens[i]] = max(length, found.get(tokens[i], 0))
    return {token: length for token, length in found.items() if length >= shortest}


@given(
    TOKENS,
    st.integers(1, 3),
    st.sampled_from([[], [[3]], [[3, 1]], [[3], [2, 2]], [[0, 1], [2]]]),
    st.integers(-1, 20),
)
def test_dry_takes_off_what_grows_with_the_repetition(
    tokens: list[int], allowed: int, breakers: list[list[int]], last_n: int
) -> None:
    window = tokens if last_n < 0 else tokens[len(tokens) - min(last_n, len(tokens)) :]
    rules = TokenRules(breakers=TokenSequences(tuple(map(tuple, breakers))))
    changes = score_changes(
        5,
        Past(tokens[:4], tokens[4:], rules),
        dry_multiplier=0.5,
        dry_base=1.5,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
    )
    lengths = plain_repetitions(window, allowed, breakers)
    for token in range(4):
        expected = -0.5 * 1.5 ** (lengths[token] - allowed) if token in lengths else 0.0
        assert changes[token] - changes[4] == pytest.approx(expected, abs=1e-9)


def test_dry_by_hand() -> None:
    """ "a b c d ... a b c": d continues three tokens; after a breaker it does not."""
    text = [0, 1, 2, 3, 4, 0, 1, 2]
    changes = score_changes(6, Past(text), dry_multiplier=0.8)
    assert changes[3] == pytest.approx(-0.8 * 1.75)
    broken = TokenRules(breakers=TokenSequences(((1,),)))
    assert score_changes(6, Past(text, rules=broken), dry_multiplier=0.8)[3] == 0
    itself = TokenRules(breakers=TokenSequences(((3,),)))
    assert score_changes(6, Past(text, rules=itself), dry_multiplier=0.8)[3] == 0


def test_dry_on_endless_repetition_stays_finite() -> None:
    past = Past([0] * 400)
    assert kept(np.zeros(2, np.float32), past, dry_multiplier=1.0, temperature=0.0) == [1]
    assert kept(np.zeros(1, np.float32), past, dry_multiplier=1.0) == [0]


# --- what must not come --------------------------------------------------------------------------


def test_a_bad_sequence_loses_its_last_token_once_the_rest_is_there() -> None:
    rules = TokenRules(bad_sequences=((2,), (0, 1, 0), (3, 3)))
    logits = np.zeros(4, np.float32)
    assert kept(logits, Past([0, 1], [], rules)) == [0, 1, 3]  # the prompt does not count
    assert kept(logits, Past([], [0, 1], rules)) == [1, 3]
    assert kept(logits, Past([], [3], rules)) == [0, 1]
    assert kept(logits, Past([3], [3, 3, 0, 1], rules)) == [1, 3]


def test_what_is_forbidden_never_comes() -> None:
    rules = TokenRules(forbidden=(0, 3))
    assert kept(np.array([9, 1, 1, 8], np.float32), Past(rules=rules)) == [1, 2]


def test_no_end_before_min_tokens() -> None:
    rules = TokenRules(end_tokens=(1, 3))
    logits = np.array([0, 9, 1, 8], np.float32)
    for count, expected in ((0, 2), (2, 2), (3, 1), (4, 1)):
        past = Past([], [0] * count, rules)
        assert kept(logits, past, min_tokens=3, temperature=0.0) == [expected]


def test_a_bias_does_not_bring_back_what_is_forbidden() -> None:
    rules = TokenRules(bad_sequences=((1,),))
    assert 1 not in kept(np.zeros(3, np.float32), Past(rules=rules), logit_bias={1: 100.0})


# --- order ---------------------------------------------------------------------------------------


def test_samplers_run_in_the_order_given_and_not_at_all_when_left_out() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    assert kept(logits, top_k=1, samplers=("temperature",)) == [0, 1, 2]
    hot = {"temperature": 3.0, "min_p": 0.7}
    assert kept(logits, **hot) == [0]
    # 3/5 to the power of 1/3 is 0.84, 2/5 is 0.74.
    assert kept(logits, samplers=("temperature", "min_p"), **hot) == [0, 1, 2]
    late = {"top_k": 1, "presence_penalty": 2.0}
    assert kept(logits, Past(output=[0]), **late) == [1]
    assert kept(logits, Past(output=[0]), samplers=("top_k", "penalties"), **late) == [0]


def test_greedy_takes_penalties_and_nothing_else() -> None:
    logits = np.array([5, 4.5, 0], np.float32)
    others = {"xtc_probability": 1.0, "xtc_threshold": 0.1, "mirostat": 2, "dynatemp_range": 1.0}
    greedy = {"temperature": 0.0, "presence_penalty": 1.0, **others}
    assert kept(logits, seed=0, **greedy) == [0]
    assert kept(logits, Past(output=[0]), seed=0, **greedy) == [1]


@pytest.mark.parametrize(
    "settings",
    [
        {"typical_p": 0.7},
        {"top_n_sigma": 1.5},
        {"xtc_probability": 0.5, "xtc_threshold": 0.15},
        {"dynatemp_range": 0.8, "min_p": 0.02},
        {"mirostat": 2, "mirostat_tau": 1.5},
        {"top_p": 0.9, "temperature": 1.5, "samplers": ("temperature", "top_p")},
        {"dry_multiplier": 0.6, "dry_allowed_length": 1},
    ],
    ids="-".join,
)
def test_draws_follow_the_filtered_distribution(settings: dict[str, Any]) -> None:
    """Chi-square of 3,000 draws, each with its own seed, against its 99.9th percentile."""
    logits = np.array([0, 1, -1, 2, 0.5, -3, 1.5], np.float32)
    past, draws = Past([3, 1, 3]), 3000
    counts, expected = np.zeros(len(logits)), np.zeros(len(logits))
    for seed in range(draws):
        params = SamplingParams(seed=seed, **settings)
        ids, p = filtered(logits, params, past)
        expected[ids] += p
        counts[sample(logits, params, past).token] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    percentile = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5}[possible.sum() - 1]
    difference = (counts - expected)[possible]
    assert (difference**2 / expected[possible]).sum() < percentile
