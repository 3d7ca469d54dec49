"""The native sampler against the NumPy reference of the chain."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engram_writer import write_version_2
from fake_model import FakeTokenizer
from heddle import _native
from heddle.engine.requests.request import token_rules
from heddle.executors.cpu.samplers import make_sampler
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.reference.philox import uniform
from heddle.extensions.reference.sampler import Past, adapted_mu, allowed, filtered, sample
from heddle.sampling_params import PARAMETERS, SamplingParams, Stage
from heddle.token_rules import LogitEdit, TokenPieces, TokenRules, TokenSequences


def native(params, past=Past()):  # noqa: B008
    sampler = make_sampler(params, past.rules)
    sampler.observe_prompt(np.array(past.prompt, np.int32))
    sampler.observe_output(np.array(past.output, np.int32))
    if past.mu is not None:
        sampler.mu = past.mu
    sampler.edit(past.edit)
    return sampler


def mask_of(rng, vocabulary, share):
    """Allows about that share of the tokens, and always 4, which no rule forbids."""
    allowed = rng.random(vocabulary) < share
    allowed[4] = True
    return np.packbits(allowed, bitorder="little").tobytes()


def bias_of(rng, vocabulary, share):
    """The bias of a processor: finite for a share of the tokens, else 0; a tenth is excluded."""
    bias = np.where(rng.random(vocabulary) < share, rng.normal(0, 3, vocabulary), 0.0)
    bias[rng.random(vocabulary) < 0.1] = -np.inf
    return bias.astype(np.float32).tobytes()


def test_a_mask_holds_until_the_next_one():
    sampler = native(SamplingParams(temperature=0, seed=1))
    logits = np.arange(20, dtype=np.float32)
    sampler.edit(LogitEdit(bytes([0b00100100])))  # shorter than the vocabulary: no others
    assert [sampler.pick("auto", logits)[0] for _ in range(2)] == [5, 5]
    sampler.edit(LogitEdit(bytes([0xFF, 0xFF])))
    assert sampler.pick("auto", logits)[0] == 15
    sampler.edit(LogitEdit(b""))
    assert sampler.pick("auto", logits)[0] == 19


@pytest.mark.parametrize(
    "cut", [{"typical_p": 0.999}, {"top_p": 0.9999999}, {"top_k": 299}, {"min_p": 1e-9}], ids=str
)
def test_bits_beyond_the_vocabulary_allow_nothing(cut):
    """300 tokens end inside a byte of the mask; four bits and two bytes of it mean no token."""
    check_that_they_are_not_counted()
    rng = np.random.default_rng(6)
    logits = rng.normal(0, 3, 300).astype(np.float32)
    mask = mask_of(rng, 300, 0.1)
    wide = mask[:-1] + bytes([mask[-1] | 0xF0]) + b"\xff\xff"
    for seed in range(30):
        params = SamplingParams(seed=seed, logprobs=20, **cut)
        plain, other = (native(params, Past(edit=LogitEdit(bits))) for bits in (mask, wide))
        assert other.pick("auto", logits) == plain.pick("auto", logits)
    nothing = native(SamplingParams(seed=1, **cut), Past(edit=LogitEdit(bytes(37) + b"\xf0\xff")))
    assert nothing.pick("auto", logits)[0] == -2


def check_that_they_are_not_counted():
    """Two of 12 tokens are allowed; the deviation of six would leave one. The cuts above would
    search for the missing four without end.
    """
    logits = np.array([1.0] + [0.0] * 11, np.float32)
    past = Past(edit=LogitEdit(bytes([0b11, 0xF0])))
    samplers = [native(SamplingParams(seed=seed, top_n_sigma=2.1), past) for seed in range(30)]
    assert {sampler.pick("auto", logits)[0] for sampler in samplers} == {0, 1}


def test_a_bias_of_a_processor_is_added_and_excludes():
    sampler = native(SamplingParams(temperature=0, seed=1))
    logits = np.arange(20, dtype=np.float32)
    none, more = np.full(19, -np.inf, np.float32), np.zeros(25, np.float32)
    none[3] = 1.0
    more[[4, 24]] = 3e38
    sampler.edit(LogitEdit(bias=none.tobytes()))  # shorter than the vocabulary: the rest is free
    assert sampler.pick("auto", logits)[0] == 19
    sampler.edit(LogitEdit(b"\xff\xff", none.tobytes()))
    assert sampler.pick("auto", logits)[0] == 3
    sampler.edit(LogitEdit(bias=more.tobytes()))
    assert sampler.pick("auto", logits * 1e37)[0] == 4, "the sum stays finite"
    sampler.edit()
    assert sampler.pick("auto", logits)[0] == 19


def test_what_forbids_everything_is_told_from_what_is_not_finite():
    logits = np.zeros(12, np.float32)
    sampler = native(SamplingParams(seed=1))
    sampler.edit(LogitEdit(b"\0\0"))
    assert sampler.pick("auto", logits)[0] == -2
    logits[11] = np.nan
    assert sampler.pick("auto", logits)[0] == -1


def test_a_bias_brings_nothing_back():
    sampler = native(SamplingParams(temperature=0, seed=1, logit_bias={3: 100.0}))
    sampler.edit(LogitEdit(bytes([0b00000001])))
    assert sampler.pick("auto", np.zeros(8, np.float32))[0] == 0


def test_a_bias_of_minus_infinity_excludes_a_token():
    """Also at the highest logit; other tokens keep their biases."""
    params = SamplingParams(temperature=0, seed=1, logprobs=0, logit_bias={7: -math.inf, 2: 3.5})
    rules = token_rules(params, FakeTokenizer())
    assert rules.forbidden == (7,)
    logits = np.arange(8, dtype=np.float32)
    assert native(params, Past(rules=rules)).pick("auto", logits)[0] == 6
    logits[6] = 5.0
    token, logprob = native(params, Past(rules=rules)).pick("auto", logits)[:2]
    assert (token, math.isfinite(logprob)) == (2, True)  # 2 + 3.5 is above 5


def test_the_native_sampler_has_the_numbers_of_the_table():
    """The executor hands over all numbers of the table, so none keeps the native default."""
    native_numbers = _native.sampler_numbers()
    assert sorted(native_numbers) == sorted(row.name for row in PARAMETERS if row.native)


def test_the_native_sampler_refuses_names_that_it_does_not_know():
    with pytest.raises(ValueError, match="called min_q"):
        _native.SamplerParams({"min_q": 0.5}, [])
    with pytest.raises(ValueError, match="called top_q"):
        _native.SamplerParams({}, ["top_q"])


@pytest.mark.parametrize("stage", Stage)
def test_every_sampler_has_a_native_stage(stage):
    _native.SamplerParams({}, [stage.value])


def test_the_random_numbers_are_the_references():
    rng = np.random.default_rng(0)
    for _ in range(200):
        seed, index = int(rng.integers(2**63)) * 2 + 1, int(rng.integers(2**32))
        assert _native.uniform(seed, index) == uniform(seed, index)
        assert _native.uniform(seed, index, 1) == uniform(seed, index, 1)


def near_a_boundary(logits, params, past):
    """Whether a float32 rounding could move the draw, or the edge of what is kept, by a token."""
    ids, probabilities = filtered(logits, params, past)
    rng = np.random.default_rng(0)
    for _ in range(6):
        # Of thresholds and entropies, which come from sums over all logits.
        change = 1 + rng.uniform(-1e-5, 1e-5)
        nudged = replace(
            params,
            top_p=min(1.0, params.top_p * change),
            min_p=min(1.0, params.min_p * change),
            top_a=min(1.0, params.top_a * change),
            typical_p=min(1.0, params.typical_p * change),
            top_n_sigma=params.top_n_sigma * change,
            xtc_threshold=min(1.0, params.xtc_threshold * change),
        )
        moved = past if past.mu is None else replace(past, mu=past.mu * change)
        shaken = logits + rng.uniform(-2e-6, 2e-6, len(logits)) * np.abs(logits)
        if any(
            set(filtered(x, p, moved)[0].tolist()) != set(ids.tolist())
            for x, p in ((logits, nudged), (shaken, params))
        ):
            return True
    draw = uniform(params.seed, len(past.output))
    return len(ids) > 1 and np.abs(np.cumsum(probabilities) - draw).min() < 2e-5


@st.composite
def requests(draw):
    def choose(*values):
        return draw(st.sampled_from(values))

    mirostat = choose(0, 0, 0, 2)
    order = draw(st.permutations(list(Stage)))
    rarely = draw(st.booleans())
    return SamplingParams(
        temperature=choose(0.0, 0.3, 1.0, 1.7),
        dynatemp_range=choose(0.0, 0.0, 0.5),
        dynatemp_exponent=choose(1.0, 2.5),
        top_k=choose(0, 0, 1, 5, 40, 5000),
        top_p=choose(1.0, 1.0, 0.95, 0.5, 0.01),
        min_p=choose(0.0, 0.0, 0.05, 0.9),
        top_a=choose(0.0, 0.0, 0.1, 1.0),
        typical_p=choose(1.0, 1.0, 0.9, 0.2),
        top_n_sigma=choose(0.0, 0.0, 1.0, 3.0),
        xtc_probability=choose(0.0, 0.0, 0.5, 1.0),
        xtc_threshold=choose(0.02, 0.2),
        repetition_penalty=choose(1.0, 1.3),
        repeat_last_n=choose(-1, 0, 6),
        presence_penalty=choose(0.0, 0.7),
        frequency_penalty=choose(0.0, -0.4),
        dry_multiplier=choose(0.0, 0.0, 0.8),
        dry_allowed_length=choose(1, 2),
        dry_penalty_last_n=choose(-1, 0, 9),
        mirostat=mirostat,
        mirostat_tau=choose(0.5, 3.0, 9.0),
        logit_bias=choose({}, {3: 4.0, 7: -100.0}),
        min_tokens=choose(0, 0, 1, 14, 15, 30),
        samplers=tuple(order[: draw(st.integers(0, 10))] if rarely else SamplingParams().samplers),
        logprobs=choose(None, 0, 1, 20),
        post_sampling_probs=choose(False, False, True),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


TEXTS = ["", *("ab"[n % 2] * (1 + n % 3) + "cd"[n % 5 % 2] * (n % 2) for n in range(1, 3000))]
PIECES = TokenPieces(tuple(text.encode() for text in TEXTS), (0, 5))
RULES = TokenRules(
    pieces=PIECES,
    end_tokens=(0, 5),
    bad_sequences=((2,), (1, 1), (1, 2, 3)),
    forbidden=(6, 7, 40, 290),
    breakers=TokenSequences(((4,), (3, 1))),
)


@pytest.fixture(scope="module")
def engrams(tmp_path_factory):
    """Two tables of n-grams of the tokens that the test below draws."""
    folder, rng = tmp_path_factory.mktemp("engrams"), np.random.default_rng(2)
    tables = []
    for name, orders in (("a", (1, 2)), ("b", (2, 3))):
        ngrams = {tuple(map(int, rng.integers(0, 6, n))) for n in orders for _ in range(20)}
        table = {ngram: {int(t): 1 + int(t) for t in rng.integers(0, 9, 4)} for ngram in ngrams}
        with write_version_2(folder / name, table, 9).open("rb") as file:
            tables.append(_native.Engram(file.fileno()))
    return tables


@st.composite
def biases(draw):
    """Weights of the two tables, alpha, the form, and marks of reasoning."""
    return (
        draw(st.sampled_from([(1.0, 0.0), (0.0, 1.0), (0.3, 2.0)])),
        draw(st.sampled_from([0.0, 0.1, 0.5])),
        draw(st.booleans()),
        *draw(st.sampled_from([((), ()), ((5,), (2,)), ((1, 2), (3,))])),
    )


@settings(deadline=None, max_examples=500)
@given(
    params=requests(),
    bias=st.none() | biases(),
    vocabulary=st.sampled_from([8, 300, 3000]),
    spread=st.sampled_from([0.1, 2.0, 8.0]),
    seed=st.integers(0, 2**32 - 1),
    mu=st.sampled_from([None, -1.0, 2.5, 40.0]),
    share=st.sampled_from([None, None, 0.01, 0.5, 0.99]),
    processed=st.sampled_from([None, None, 0.01, 0.5, 1.0]),
    lengths=st.sampled_from([(9, 14), (9, 14), (20, 0), (3, 1)]),
)
def test_picks_what_the_reference_picks(
    engrams, params, bias, vocabulary, spread, seed, mu, share, processed, lengths
):
    rules = RULES
    if bias is not None:
        weights, *rest = bias
        tables = tuple(pair for pair in zip(engrams, weights, strict=True) if pair[1])
        rules = replace(RULES, extensions=(EngramBias(tables, *rest),))
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, vocabulary).astype(np.float32)
    # Few different tokens, so that there is something to repeat.
    prompt, output = ([int(t) for t in rng.integers(0, 6, n)] for n in lengths)
    edit = LogitEdit(
        b"" if share is None else mask_of(rng, vocabulary, share),
        b"" if processed is None else bias_of(rng, vocabulary, processed),
    )
    past = Past(prompt, output, rules, mu, edit)
    assume(len(allowed(vocabulary, params, past)))
    expected = sample(logits, params, past)
    sampler = native(params, past)
    token, logprob, top = sampler.pick("auto", logits)
    if token != expected.token:
        assert near_a_boundary(logits, params, past)
        return
    if params.logprobs is not None and params.post_sampling_probs:
        told = {t: p for t, p in [(-1, logprob), *top] if p > -700}  # float64 has no lower ones
        right = {t: p for t, p in [(-1, expected.logprob), *expected.top] if p > -700}
        same = list(told) == list(right) and told == pytest.approx(right, abs=2e-3)
        assert same or near_a_boundary(logits, params, past)
    elif params.logprobs is not None:
        assert logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert [t for t, _ in top] == [t for t, _ in expected.top]
        np.testing.assert_allclose([p for _, p in top], [p for _, p in expected.top], atol=1e-4)
    if params.mirostat and params.temperature > 0:
        assert sampler.mu == pytest.approx(adapted_mu(logits, params, past, token), abs=1e-3)
    elif not params.mirostat:
        assert sampler.mu is None


def test_no_end_before_min_tokens():
    """Token 1 is the best and an end, 3 is another end, 2 is the best of the others."""
    rules = TokenRules(end_tokens=(1, 3))
    logits = np.array([0, 9, 1, 8], np.float32)
    params = SamplingParams(temperature=0, seed=0, min_tokens=3)
    running = native(params, Past(prompt=[0, 1, 2, 3], rules=rules))
    assert [running.pick("auto", logits)[0] for _ in range(5)] == [2, 2, 2, 1, 1]
    for count, expected in ((0, 2), (2, 2), (3, 1), (4, 1)):
        resumed = native(params, Past([0] * 9, [0] * count, rules))
        assert resumed.pick("auto", logits)[0] == expected


def test_a_bad_sequence_is_excluded_from_the_first_output_on():
    """The end of the prompt does not begin a bad sequence."""
    rules = TokenRules(bad_sequences=((2,), (0, 1), (3, 3, 0)))
    logits = np.array([1, 3, 4, 2], np.float32)
    params = SamplingParams(temperature=0, seed=0)
    for prompt, output, expected in (
        ([], [], 1),
        ([0], [], 1),
        ([], [0], 3),
        ([3], [0], 3),
        ([3], [3], 1),
    ):
        past = Past(prompt, output, rules)
        assert sample(logits, params, past).token == expected
        assert native(params, past).pick("auto", logits)[0] == expected
    last = np.array([4, 0, 0, 3], np.float32)
    assert native(params, Past([3], [3], rules)).pick("auto", last)[0] == 0
    assert native(params, Past([], [3, 3], rules)).pick("auto", last)[0] == 3


@pytest.mark.parametrize("last_n", range(-1, 8))
def test_the_repetition_penalty_forgets_what_left_its_window(last_n):
    """All logits are equal: the lowest id that is not in the window wins."""
    tokens = [0, 1, 2, 0, 3, 1, 4]
    params = SamplingParams(temperature=0, seed=0, repetition_penalty=2.0, repeat_last_n=last_n)
    logits = np.ones(6, np.float32)
    for prompt_tokens in range(len(tokens) + 1):
        past = Past(tokens[:prompt_tokens], tokens[prompt_tokens:])
        recent = tokens if last_n < 0 else tokens[len(tokens) - last_n :]
        expected = min(set(range(6)) - set(recent))
        assert sample(logits, params, past).token == expected
        assert native(params, past).pick("auto", logits)[0] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"typical_p": 0.6},
        {"top_n_sigma": 1.2},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"dynatemp_range": 0.7, "top_p": 0.9},
        {"mirostat": 2, "mirostat_tau": 2.0},
        {"top_p": 0.999},
        {"min_p": 1e-6, "temperature": 1.5, "samplers": ("temperature", "min_p")},
    ],
    ids="-".join,
)
def test_draws_cover_what_the_reference_keeps(changes):
    """Integer logits, so that ties are everywhere: many draws find all that is kept, no more."""
    rng = np.random.default_rng(3)
    logits = rng.integers(-3, 4, 60).astype(np.float32)
    params = SamplingParams(**changes, seed=0)
    drawn = {native(replace(params, seed=s)).pick("auto", logits)[0] for s in range(4000)}
    assert drawn <= set(filtered(logits, params, Past())[0].tolist())
    expected = {i for i, p in zip(*filtered(logits, params, Past()), strict=True) if p > 3e-3}
    assert drawn >= expected


@pytest.mark.parametrize("typical_p", [0.05, 0.3, 0.6, 0.9, 0.97])
def test_typical_p_over_a_whole_vocabulary(typical_p):
    """Large enough for lists that are sorted by digits, with ties, zeros of both signs included."""
    rng = np.random.default_rng(int(typical_p * 100))
    logits = (rng.integers(-12, 13, 9000) / 4 * rng.choice([-1.0, 1.0], 9000)).astype(np.float32)
    for settings_ in ({"typical_p": typical_p}, {"top_p": typical_p}, {"min_p": 1 - typical_p}):
        for seed in range(40):
            params = SamplingParams(seed=seed, **settings_)
            token = native(params).pick("auto", logits)[0]
            if token != sample(logits, params, Past()).token:
                assert near_a_boundary(logits, params, Past())


def test_zeros_of_both_signs_are_a_tie_in_long_lists():
    logits = np.where(np.arange(5000) % 3 == 0, -0.0, 0.0).astype(np.float32)
    for seed in range(50):
        params = SamplingParams(seed=seed, min_p=0.5)
        assert native(params).pick("auto", logits)[0] == int(uniform(seed, 0) * 5000)


@settings(deadline=None, max_examples=300)
@given(
    tokens=st.lists(st.integers(0, 3), max_size=30),
    allowed=st.integers(1, 3),
    last_n=st.integers(-1, 30),
    breakers=st.sets(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3),
)
def test_dry_ranks_tokens_as_the_reference_does(tokens, allowed, last_n, breakers):
    """Every token in turn is the one that would win but for a long enough repetition."""
    rules = TokenRules(breakers=TokenSequences(tuple(sorted(breakers))))
    past = Past(tokens[:5], tokens[5:], rules)
    dry = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_penalty_last_n": last_n}
    params = SamplingParams(temperature=0, seed=0, dry_allowed_length=allowed, **dry)
    for token in range(4):
        for lead in (0.5, 1.5, 3.0, 6.0):
            logits = np.array([0, -1e-3, -2e-3, -3e-3, -4e-3], np.float32)
            logits[token] += np.float32(lead)
            picked = native(params, past).pick("auto", logits)[0]
            assert picked == sample(logits, params, past).token


def test_the_whole_state_but_mu_comes_from_the_tokens():
    """A sampler that saw the tokens one by one, and one that got them when it was made."""
    rng = np.random.default_rng(8)
    everything = SamplingParams(
        seed=4,
        repetition_penalty=1.2,
        repeat_last_n=7,
        presence_penalty=0.3,
        dry_multiplier=0.8,
        dry_allowed_length=1,
        xtc_probability=0.5,
        min_tokens=10,
        top_p=0.9,
    )
    for params in (everything, replace(everything, mirostat=2, mirostat_tau=3.0)):
        running, output = native(params, Past([1, 2, 3], [], RULES)), []
        for _ in range(40):
            logits = rng.normal(0, 2, 30).astype(np.float32)
            resumed = native(params, Past([1, 2, 3], output, RULES, running.mu))
            expected = resumed.pick("auto", logits)
            assert running.pick("auto", logits) == expected
            assert running.mu == resumed.mu
            output.append(expected[0])


@pytest.mark.parametrize("logprobs", [None, 0, 5])
def test_ties_go_to_the_lower_id(logprobs):
    logits = np.zeros(1000, np.float32)
    greedy = SamplingParams(temperature=0, logprobs=logprobs, seed=0)
    token, _, top = native(greedy).pick("auto", logits)
    assert token == 0
    assert [t for t, _ in top] == list(range(logprobs or 0))
    first = SamplingParams(top_k=1, seed=5)
    assert native(first).pick("auto", logits)[0] == 0


@pytest.mark.parametrize(
    ("logits", "settings_", "kept"),
    [
        ([2, 1, 2, 2], {"min_p": 1.0}, {0, 2, 3}),
        ([1, 1, 1], {"top_n_sigma": 1.0}, {0, 1, 2}),
        ([1, 1, 1, 1], {"xtc_probability": 1.0, "xtc_threshold": 0.25}, {3}),
    ],
    ids=["min_p", "top_n_sigma", "xtc"],
)
def test_what_lies_at_a_limit_is_within_it(logits, settings_, kept):
    """The limits of these logits are known without rounding."""
    values = np.array(logits, np.float32)
    params = SamplingParams(**settings_, seed=0)
    assert set(filtered(values, params, Past())[0].tolist()) == kept
    drawn = {native(replace(params, seed=s)).pick("auto", values)[0] for s in range(100)}
    assert drawn == kept


def test_top_p_reaches_exactly_the_needed_mass():
    """Half, a quarter, an eighth...: the set is known without rounding."""
    logits = np.log(0.5 ** np.arange(1, 20)).astype(np.float32)
    drawn = set()
    for seed in range(400):
        params = SamplingParams(top_p=0.8, seed=seed)
        drawn.add(native(params).pick("auto", logits)[0])
    assert drawn == {0, 1, 2}


def test_each_pick_moves_the_counter_and_the_penalties():
    logits = np.zeros(50, np.float32)
    params = SamplingParams(temperature=0, frequency_penalty=1.0, seed=0)
    sampler = native(params)
    assert [sampler.pick("auto", logits)[0] for _ in range(50)] == list(range(50))
    resumed = native(SamplingParams(seed=9), Past(output=[4, 4]))
    fresh = native(SamplingParams(seed=9))
    fresh.pick("auto", logits), fresh.pick("auto", logits)
    assert resumed.pick("auto", logits) == fresh.pick("auto", logits)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isa", _native.isa_levels())
def test_one_logit_that_is_not_finite_means_no_token(isa, value):
    greedy, drawn = SamplingParams(temperature=0, seed=1), SamplingParams(seed=1, logprobs=3)
    for place in (0, 1, 17, 1024, 2998, 2999):
        logits = np.linspace(-5, 5, 3000, dtype=np.float32)
        assert native(drawn).pick(isa, logits)[0] >= 0
        logits[place] = value
        for params in (greedy, drawn, replace(drawn, top_p=0.9), replace(drawn, top_k=5)):
            assert native(params).pick(isa, logits) == (-1, 0.0, [])


def test_a_penalty_that_leaves_the_range_of_floats_leaves_a_best_token():
    logits = np.full(10, 3e38, np.float32)
    params = SamplingParams(seed=1, repetition_penalty=0.01)
    assert native(params, Past(prompt=[3])).pick("auto", logits)[0] == 3


@pytest.mark.parametrize("dynatemp_range", [0.0, 0.5])
@pytest.mark.parametrize(
    "temperature", [1e-310, 1e-44, 1e-38, 1e-37, 1e-20, 1e-9, 1e9, 1e20, 1e37, 1e38, 1e39, 1e300]
)
def test_penalties_after_an_extreme_temperature(temperature, dynatemp_range):
    """Scores divided by 1e-38, or multiplied back by 1e38, leave the range of floats."""
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 8, 300).astype(np.float32)
    for seed in range(20):
        params = SamplingParams(
            temperature=temperature,
            dynatemp_range=dynatemp_range,
            repetition_penalty=(0.01, 100.0)[seed % 2],
            frequency_penalty=(-2.0, 2.0)[seed // 2 % 2],
            dry_multiplier=0.8,
            seed=seed,
            samplers=(Stage.TEMPERATURE, Stage.PENALTIES, Stage.DRY),
        )
        best = int(logits.argmax())
        past = Past([best, 7, 8, 7, 8], [int(t) for t in rng.integers(0, 9, 9)])
        token = native(params, past).pick("auto", logits)[0]
        if token != sample(logits, params, past).token:
            assert near_a_boundary(logits, params, past)


@pytest.mark.parametrize(
    "cut", [{"top_k": 10**6}, {"top_p": 0.9999999}, {"typical_p": 0.9999999}], ids=str
)
def test_a_logit_that_a_penalty_takes_below_the_range_of_floats_is_waited_for_by_no_one(cut):
    """At a temperature of 1e-38 a negative logit was -inf, and all others were waited for."""
    order = tuple(Stage)
    order = (Stage.TEMPERATURE, *(stage for stage in order if stage is not Stage.TEMPERATURE))
    params = SamplingParams(
        temperature=1e-38, repetition_penalty=1.1, seed=1, samplers=order, **cut
    )
    logits = np.linspace(-20, 15, 500).astype(np.float32)
    assert native(params, Past(prompt=[3, 5])).pick("auto", logits)[0] == 499


def test_a_failed_pick_leaves_the_sampler_as_it_was():
    logits = np.zeros(50, np.float32)
    params = SamplingParams(seed=9, frequency_penalty=1.0)
    disturbed, plain = native(params), native(params)
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
        cut = SamplingParams(seed=seed, typical_p=0.8, xtc_probability=0.5, dynatemp_range=0.5)
        aimed = SamplingParams(seed=seed, mirostat=2, repetition_penalty=1.1, top_n_sigma=2.0)
        for p in (params, plain, cut, aimed):
            assert native(p).pick(isa, logits) == native(p).pick("portable", logits)
