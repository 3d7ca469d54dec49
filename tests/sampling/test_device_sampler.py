"""The sampler chain on a torch device against the native sampler, and rows in company."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_sampler import (
    RULES,
    biases,
    engrams,  # noqa: F401
    mask_of,
    native,
    near_a_boundary,
    requests,
)

from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.reference.repetition import latest, repetition_lengths
from heddle.extensions.reference.sampler import Past
from heddle.sampling_params import SamplingParams, Stage
from heddle.step import Binding
from heddle.token_rules import NO_RULES, LogitEdit, TokenRules, TokenSequences

torch = pytest.importorskip("torch")
from heddle.extensions.torch import device_sampling  # noqa: E402
from heddle.extensions.torch.chain import LACKING, chain_of  # noqa: E402
from heddle.extensions.torch.device_sampling import DevicePicks, runs_here  # noqa: E402
from heddle.extensions.torch.repetitions import Repetitions  # noqa: E402
from heddle.extensions.torch.scoring import (  # noqa: E402
    Wanted,
    score_on_device,
    score_on_host,
)
from heddle.extensions.torch.slot_history import SlotHistory  # noqa: E402
from heddle.extensions.torch.sums import log, power  # noqa: E402
from no_waits import NoWaits  # noqa: E402

LATEST = torch.zeros(4, dtype=torch.int64)
"""The token that each slot sampled last. Rows read it if the host does not know the token."""


def row_of(params, past, vocabulary):
    binding = Binding(0, params, past.prompt, past.output, past.rules)
    history = SlotHistory(binding, params, vocabulary)
    (row,) = history.rows((), [past.edit.mask] if past.edit.mask else [])
    return row


def picks(logits, params, pasts):
    """The device's picks for rows of logits (rows, vocabulary) in one batch."""
    rows = [row_of(*pair, logits.shape[-1]) for pair in zip(params, pasts, strict=True)]
    with torch.inference_mode():
        return DevicePicks(torch.from_numpy(logits), rows, LATEST).read()


def on_the_device(params):
    samplers = tuple(stage for stage in params.samplers if stage is not Stage.INFILL)
    params = replace(params, mirostat=0, samplers=samplers)
    assert runs_here(params, NO_RULES)
    return params


def check_logprobs(params, found, expected):
    if params.logprobs is None:
        assert np.isnan(found[1])
        assert found[2] == []
        return
    assert found[1] == pytest.approx(expected[1], abs=1e-5)
    assert [token for token, _ in found[2]] == [token for token, _ in expected[2]]
    np.testing.assert_allclose(
        [logprob for _, logprob in found[2]], [logprob for _, logprob in expected[2]], atol=1e-5
    )


@settings(deadline=None, max_examples=60)
@given(
    params=st.lists(requests(), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([20, 300, 3000]),
    scale=st.sampled_from([0.1, 2.0, 6.0]),
    has_rules=st.booleans(),
    is_masked=st.booleans(),
    bias=st.none() | biases(),
)
def test_requests_of_any_kind_agree(
    engrams,  # noqa: F811
    params,
    seed,
    vocabulary,
    scale,
    has_rules,
    is_masked,
    bias,
):
    rng = np.random.default_rng(seed)
    rules = replace(RULES, pieces=None) if has_rules else NO_RULES
    if bias is not None:
        weights, *others = bias
        tables = [pair for pair in zip(engrams, weights, strict=True) if pair[1]]
        rules = replace(rules, extensions=(EngramBias(tuple(tables), *others),))
    params = [on_the_device(one) for one in params]
    pasts = [
        Past(
            [int(t) for t in rng.integers(0, 12, 8)],
            [int(t) for t in rng.integers(0, 6, rng.integers(0, 16))],
            rules,
            edit=LogitEdit(mask_of(rng, vocabulary, 0.3) if is_masked else b""),
        )
        for _ in params
    ]
    logits = np.round(rng.normal(0, scale, (len(params), vocabulary)), 2).astype(np.float32)
    found = picks(logits, params, pasts)
    for i, (one, past) in enumerate(zip(params, pasts, strict=True)):
        expected = native(one, past).pick("auto", logits[i].copy())
        if found[i][0] != expected[0]:
            assert near_a_boundary(logits[i], one, past)
        elif not one.post_sampling_probs or not near_a_boundary(logits[i], one, past):
            check_logprobs(one, found[i], expected)
        assert repr(picks(logits[i : i + 1], [one], [past])[0]) == repr(found[i])


@pytest.mark.parametrize("stage", sorted(set(Stage) - LACKING, key=str))
def test_the_device_has_every_sampler_that_it_does_not_name_as_lacking(stage):
    """A request with any other sampler would fail."""
    assert set(chain_of(SamplingParams(samplers=(stage,)))) <= {stage}


SAMPLERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "a temperature of almost 0": {"temperature": 1e-20},
    "dynamic temperature": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
    "dynamic temperature down to 0": {"dynatemp_range": 2.0},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 1e-3},
    "top-a": {"top_a": 0.1},
    "typical": {"typical_p": 0.9},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "XTC": {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    "XTC with any threshold": {"xtc_probability": 1.0, "xtc_threshold": 1e-30},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.3},
    "penalties of a window": {"repetition_penalty": 1.3, "repeat_last_n": 4},
    "DRY": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "biases": {"logit_bias": {3: 2.0, 4: -np.inf}, "min_tokens": 60},
    "temperature 0": {"temperature": 0, "frequency_penalty": 0.3, "dry_multiplier": 0.8},
}
"""Of each sampler, parameters that ask for it alone."""

REPORTS = ({}, {"logprobs": 3}, {"logprobs": 3, "post_sampling_probs": True})


def test_the_samplers_above_are_all():
    asked = {stage for one in SAMPLERS.values() for stage in chain_of(SamplingParams(**one))}
    assert asked == set(Stage) - LACKING


@pytest.mark.parametrize("name", [*SAMPLERS, "all"])
def test_the_device_is_asked_for_tokens_without_a_wait(name):
    """Its numbers decide the shape of nothing. The tokens are the native sampler's.

    Some rows are flat: with most samplers they keep more than a block of tokens.
    """
    asked = SAMPLERS.get(name) or {
        key: value for one in [*SAMPLERS.values()][:13] for key, value in one.items()
    }
    rng = np.random.default_rng(8)
    scales = np.array([[0.01], [8.0], [0.5]] * 3, np.float32)
    logits = (rng.normal(0, 1, (9, 3000)) * scales).astype(np.float32)
    history = [int(token) for token in rng.integers(0, 9, 40)]
    rules = TokenRules(forbidden=(5,), end_tokens=(6,), bad_sequences=((7,), (history[-1], 8)))
    past = Past(history[:20], history[20:], rules)
    params = [SamplingParams(seed=i, **asked, **report) for report in REPORTS for i in range(3)]
    rows = [row_of(one, past, 3000) for one in params]
    with torch.inference_mode():
        given = torch.from_numpy(logits)
        with NoWaits():
            asked_for = DevicePicks(given, rows, LATEST)
        found = asked_for.read()
    for one, row, pick in zip(params, logits, found, strict=True):
        if pick[0] != native(one, past).pick("auto", row.copy())[0]:
            assert near_a_boundary(row, one, past)


def test_temperatures_by_entropy_have_the_bits_of_the_host():
    """The host's logarithms and powers, whatever rows are beside one."""
    rng = np.random.default_rng(9)
    x, exponent = rng.uniform(1e-3, 1.0, 3000), rng.uniform(0.0, 9.0, 3000)
    given = torch.from_numpy(x).unsqueeze(-1), torch.from_numpy(exponent).unsqueeze(-1)
    found = [log(given[0]), power(*given)]
    expected = [np.array([*map(math.log, x)]), np.array([*map(math.pow, x, exponent)])]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[:, 0].float(), other.astype(np.float32))
    for count in (1, 3, 1025):
        some = [one[-count:] for one in given]
        assert torch.equal(log(some[0]), found[0][-count:])
        assert torch.equal(power(*some), found[1][-count:])
    assert power(given[0][:1] * 0, given[0][:1] * 0).item() == 1


@pytest.mark.parametrize("vocabulary", [30, 3000])
def test_scores_of_prompt_tokens_agree(vocabulary):
    """With ties, and with a row that is not finite."""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(np.round(rng.normal(0, 2, (16, vocabulary)), 1).astype(np.float32))
    logits[5, 7] = torch.nan
    targets = [int(target) for target in rng.integers(0, vocabulary, 16)]
    wanted = [Wanted(target, top) for target, top in zip(targets, [0, 1, 9, 30] * 4, strict=True)]
    expected, found = score_on_host(logits, wanted), score_on_device(logits, wanted)
    assert [one is None for one in found] == [place == 5 for place in range(16)]
    for one, other in zip(expected, found, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert (one.token, one.rank) == (other.token, other.rank)
        params = SamplingParams(logprobs=20)
        check_logprobs(params, (0, other.logprob, other.top), (0, one.logprob, one.top))


def test_a_batch_says_of_each_row_what_is_wrong_with_it():
    logits = np.zeros((4, 300), np.float32)
    logits[0, 299] = np.nan
    logits[1, 3] = np.inf
    params = [SamplingParams(seed=1, top_p=0.5, dynatemp_range=0.5, logprobs=2)] * 4
    mask = bytes(38)
    found = picks(logits, params, [Past(), Past(), Past(edit=LogitEdit(mask)), Past()])
    assert [token for token, _, _ in found[:3]] == [-1, -1, -2]
    assert found[3] == picks(logits[3:], params[3:], [Past()])[0]


@pytest.mark.parametrize(
    "cut",
    [{}, {"top_p": 0.9}, {"top_p": 0.999999}, {"min_p": 1e-3}, {"top_k": 3000}, {"typical_p": 0.9}],
    ids=str,
)
def test_lists_are_as_long_as_a_row_needs(cut):
    """Flat rows beside a steep one. A row's bits do not depend on its neighbours' lists."""
    rng = np.random.default_rng(5)
    scales = np.array([[0.01], [8.0], [0.5]], np.float32)
    logits = (rng.normal(0, 1, (3, 20_000)) * scales).astype(np.float32)
    for seed in range(4):
        params = [SamplingParams(seed=seed, logprobs=3, post_sampling_probs=True, **cut)] * 3
        found = picks(logits, params, [Past()] * 3)
        for i in range(3):
            assert picks(logits[i : i + 1], params[:1], [Past()]) == [found[i]]
            expected = native(params[i]).pick("auto", logits[i].copy())
            if found[i][0] == expected[0]:
                assert found[i][1] == pytest.approx(expected[1], abs=1e-5)
            else:
                assert near_a_boundary(logits[i], params[i], Past())


@pytest.mark.parametrize("temperature", [1e-40, 1e-20, 1e20])
@pytest.mark.parametrize("dynatemp_range", [0.0, 0.5, 99.0])
def test_temperatures_at_the_ends_of_the_range(temperature, dynatemp_range):
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 8, (20, 300)).astype(np.float32)
    order = (Stage.TEMPERATURE, Stage.PENALTIES, Stage.XTC)
    params = [
        SamplingParams(
            temperature=temperature,
            dynatemp_range=dynatemp_range,
            repetition_penalty=(0.01, 100.0)[seed % 2],
            frequency_penalty=(-2.0, 2.0)[seed // 2 % 2],
            xtc_probability=0.5,
            seed=seed,
            samplers=order,
        )
        for seed in range(20)
    ]
    pasts = [
        Past([int(row.argmax()), 7], [int(t) for t in rng.integers(0, 9, 9)]) for row in logits
    ]
    for i, found in enumerate(picks(logits, params, pasts)):
        if found[0] != native(params[i], pasts[i]).pick("auto", logits[i].copy())[0]:
            assert near_a_boundary(logits[i], params[i], pasts[i])


def entries(biases):
    tokens, values, *_ = biases
    return {int(token): float(value) for token, value in zip(tokens, values, strict=True)}


@pytest.mark.torch_slow
@settings(deadline=None, max_examples=200)
@given(
    tokens=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    appended=st.integers(0, 10),
    breakers=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=3),
    window=st.sampled_from([-1, 1, 5, 12, 100]),
    shortest=st.integers(1, 3),
)
def test_repetitions_are_those_of_the_definition(tokens, appended, breakers, window, shortest):
    params = SamplingParams(
        dry_multiplier=1.0, dry_base=2.0, dry_penalty_last_n=window, dry_allowed_length=shortest
    )
    begin = max(0, len(tokens) - appended)
    found = Repetitions(params, TokenSequences(tuple(breakers)), tokens[:begin])
    for token in tokens[begin:]:
        found.append(token)
    expected = repetition_lengths(latest(tokens, window), shortest, breakers)
    assert entries(found.penalties()) == {
        token: 2.0 ** (length - shortest) for token, length in expected.items()
    }
    after = list(zip(*found.penalties_after_unknown(), strict=True))
    for token in range(5):
        expected = repetition_lengths(latest([*tokens, token], window), shortest, breakers)
        penalties = [(int(other), penalty) for other, penalty, one in after if one == token]
        assert len(dict(penalties)) == len(penalties), "each token once"
        assert dict(penalties) == {
            other: 2.0 ** (length - shortest) for other, length in expected.items()
        }


READ_OUTPUT = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": -0.3},
    "of the output": {"repetition_penalty": 1.3, "frequency_penalty": 0.3, "repeat_last_n": 0},
    "of as many as there are": {"repetition_penalty": 1.3, "repeat_last_n": 99},
    "of a window": {"repetition_penalty": 1.3, "repeat_last_n": 4},
    "of the last token": {"repetition_penalty": 1.3, "repeat_last_n": 1},
    "DRY": {"dry_multiplier": 0.8},
    "DRY of all": {"dry_multiplier": 0.1, "dry_allowed_length": 1},
    "DRY of a window": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_penalty_last_n": 5},
    "after the temperature": {
        "repetition_penalty": 1.3,
        "dry_multiplier": 0.8,
        "dry_allowed_length": 1,
        "samplers": (Stage.TEMPERATURE, Stage.DRY, Stage.PENALTIES),
    },
    "DRY after the temperature": {
        "dry_multiplier": 0.8,
        "dry_allowed_length": 1,
        "samplers": (Stage.TEMPERATURE, Stage.DRY),
    },
    "of a list": {
        "repetition_penalty": 1.3,
        "dry_multiplier": 0.8,
        "dry_allowed_length": 1,
        "samplers": (Stage.TEMPERATURE, Stage.TOP_P, Stage.PENALTIES, Stage.DRY),
        "top_p": 0.9,
    },
    "at temperature 0": {"temperature": 0, "repetition_penalty": 1.3, "min_tokens": 11},
}
"""Parameters whose samplers read the output."""


@pytest.mark.parametrize("name", READ_OUTPUT)
@pytest.mark.parametrize("report", [{}, {"logprobs": 50, "post_sampling_probs": True}], ids=str)
def test_a_token_that_only_the_device_knows_counts_as_if_the_host_knew_it(name, report):
    """All tokens that it may be, beside rows whose host knows the token, without a wait."""
    rng = np.random.default_rng(11)
    params = SamplingParams(**{"seed": 3, "temperature": 0.7} | READ_OUTPUT[name] | report)
    bad = ((7,), (3, 4), (3, 5), (9, 3, 4), (5, 5), (2, 60))
    breakers = TokenSequences(((2,), (4, 1), (1, 4), (5,), (0, 3, 1)))
    rules = TokenRules(end_tokens=(6,), bad_sequences=bad, breakers=breakers)
    prompt, output = ([int(token) for token in rng.integers(0, 12, count)] for count in (90, 9))
    prompt[0], output[-2:] = 20, [9, 0]
    logits = rng.normal(16, 1, (8, 50)).astype(np.float32)  # of each, the report shows the last bit
    given = torch.from_numpy(logits)
    binding = Binding(1, params, prompt, output, rules)
    for begin in (0, 4):
        candidates = range(begin, begin + 4)
        histories = [SlotHistory(replace(binding, slot=slot), params, 50) for slot in range(4)]
        late = [row for one in histories for row in one.rows((), (), follows_unknown=True)]
        for history, token in zip(histories, candidates, strict=True):
            history.append(token)
        known = [row for one in histories for row in one.rows((), ())]
        of_slots = torch.tensor(candidates)
        with torch.inference_mode():
            expected = DevicePicks(given, known + known, LATEST).read()
            with NoWaits():
                mixed = DevicePicks(given, late + known, of_slots)
                alone = DevicePicks(given[:4], late, of_slots)
            assert repr(mixed.read()) == repr(expected)
            assert repr(alone.read()) == repr(expected[:4])


@pytest.mark.parametrize("base", [1.1, 1.75])
def test_penalties_of_repetitions_have_the_bits_of_the_native_sampler(base):
    """A logit that is as high as its penalty becomes 0, and ties with another: the lower token is
    picked."""
    params = SamplingParams(temperature=0, seed=0, dry_multiplier=0.8, dry_base=base)
    for count in range(4, 70):
        past = Past([5] * count)
        ((token, penalty),) = entries(Repetitions(params, None, past.prompt).penalties()).items()
        assert token == 5
        for other in (4, 6):
            logits = np.full(8, -1.0, np.float32)
            logits[[5, other]] = penalty, 0.0
            assert native(params, past).pick("auto", logits)[0] == min(5, other)


@pytest.mark.parametrize("window", [-1, 0, 3])
def test_guesses_leave_no_trace_in_a_history(window):
    """Rows after guesses have the counts of a sequence with these tokens."""
    params = SamplingParams(
        seed=1,
        repetition_penalty=1.5,
        repeat_last_n=window,
        dry_multiplier=0.8,
        dry_allowed_length=1,
        min_tokens=4,
    )
    prompt, output, guesses = [3, 1, 4, 1], [5, 9], [2, 1, 1, 3]

    def history(tokens):
        return SlotHistory(Binding(0, params, prompt, tokens, RULES), params, 50)

    grown = history([])
    for token in output:
        grown.append(token)
    for _ in range(2):
        rows = grown.rows(guesses, ())
        for count, row in enumerate(rows):
            (fresh,) = history(output + guesses[:count]).rows((), ())
            assert row.index == fresh.index == len(output) + count
            assert sorted(row.counts.T.tolist()) == sorted(fresh.counts.T.tolist())
            assert entries(row.repeats) == entries(fresh.repeats)
            np.testing.assert_array_equal(row.allowed, fresh.allowed)
    assert len(grown.rows(guesses, [b"", b"", b""])) == 3, "as many as there are masks"


def test_likeliest_tokens_are_those_that_xtc_left_of_a_list():
    logits = np.linspace(3, 0, 60).astype(np.float32)
    params = SamplingParams(
        seed=4,
        top_k=9,
        xtc_probability=1.0,
        xtc_threshold=0.08,
        logprobs=4,
        post_sampling_probs=True,
    )
    (found,) = picks(logits[None], [params], [Past()])
    expected = native(params).pick("auto", logits.copy())
    assert expected[2][0][0] > 0, "XTC removed the first"
    check_logprobs(params, found, expected)


def test_many_rows_are_divided_into_batches(monkeypatch):
    logits = np.random.default_rng(2).normal(0, 2, (7, 500)).astype(np.float32)
    params = [SamplingParams(seed=i, top_p=0.9, logprobs=2 - i % 3) for i in range(7)]
    whole = picks(logits, params, [Past()] * 7)
    monkeypatch.setattr(device_sampling, "_MOST_LOGITS", 1000)
    assert picks(logits, params, [Past()] * 7) == whole
    assert device_sampling.sampling_bytes(7, 500) == 2 * 7 * 500 * 4 + 1000 * 100


def test_guesses_leave_no_trace_in_what_engrams_follow(engrams):  # noqa: F811
    """Guesses open and close reasoning, inside which there is no bias."""
    tables = tuple((table, 1.0) for table in engrams)
    rules = TokenRules(extensions=(EngramBias(tables, 0.5, opening=(5,), closing=(2, 1)),))
    params = SamplingParams(seed=1)
    guesses = [3, 5, 1, 2, 1, 3, 5, 4]

    def history(tokens):
        return SlotHistory(Binding(0, params, [3, 1, 4, 1], tokens, rules), params, 50)

    grown, found = history([]), []
    for _ in range(2):
        rows = grown.rows(guesses, ())
        for count, row in enumerate(rows):
            (fresh,) = history(guesses[:count]).rows((), ())
            assert entries(row.biases[1]) == entries(fresh.biases[1])
            found.append(len(row.biases[1][0]) > 0)
    assert not any(found[2:5]), "reasoning is open"
    assert any(found[5:7])
