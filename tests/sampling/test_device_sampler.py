"""The sampler chain on a torch device against the native sampler, and rows in company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_sampler import RULES, mask_of, native, near_a_boundary, requests

from heddle.sampling_params import SamplingParams, Stage
from heddle.step import NO_RULES, Binding
from heddle.testing.reference_sampler import Past

torch = pytest.importorskip("torch")
from heddle.executors.torch.chain import LACKING, chain_of  # noqa: E402
from heddle.executors.torch.device_sampling import pick, runs_here  # noqa: E402
from heddle.executors.torch.slot_history import SlotHistory  # noqa: E402


def row_of(params, past, vocabulary):
    binding = Binding(0, params, past.prompt, past.output, past.rules)
    history = SlotHistory(binding, params, vocabulary)
    (row,) = history.rows((), [past.mask] if past.mask is not None else [])
    return row


def picks(logits, params, pasts):
    """The device's picks for rows of logits (rows, vocabulary) in one batch."""
    rows = [row_of(*pair, logits.shape[-1]) for pair in zip(params, pasts, strict=True)]
    with torch.inference_mode():
        return pick(torch.from_numpy(logits), rows)


def on_the_device(params):
    samplers = tuple(stage for stage in params.samplers if stage is not Stage.INFILL)
    params = replace(params, mirostat=0, dry_multiplier=0.0, samplers=samplers)
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


@settings(deadline=None, max_examples=80)
@given(
    params=st.lists(requests(), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([20, 300, 3000]),
    scale=st.sampled_from([0.1, 2.0, 6.0]),
    has_rules=st.booleans(),
    is_masked=st.booleans(),
)
def test_requests_of_any_kind_agree(params, seed, vocabulary, scale, has_rules, is_masked):
    rng = np.random.default_rng(seed)
    rules = replace(RULES, pieces=None) if has_rules else NO_RULES
    params = [on_the_device(one) for one in params]
    pasts = [
        Past(
            [int(t) for t in rng.integers(0, 12, 8)],
            [int(t) for t in rng.integers(0, 6, rng.integers(0, 16))],
            rules,
            mask=mask_of(rng, vocabulary, 0.3) if is_masked else None,
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
