"""The sampler `infill`: its definition by small cases, for NumPy and the native one alike."""

from __future__ import annotations

import numpy as np
import pytest

from heddle.executors.cpu.samplers import make_sampler
from heddle.extensions.reference.sampler import Past, filtered
from heddle.sampling_params import SamplingParams
from heddle.token_rules import TokenPieces, TokenRules

TEXTS = (b"", b"re", b"return", b"x", b"y", b"ret", b"")
PIECES = TokenPieces(TEXTS, (0, 6))
RULES = TokenRules(pieces=PIECES)
PARAMS = SamplingParams(samplers=("top_k", "infill"), top_k=4, seed=0)


def kept(probabilities: dict[int, float], rules: TokenRules = RULES) -> set[int]:
    """Tokens that may follow, of which both implementations say the same."""
    logits = np.full(len(TEXTS), -30.0, np.float32)
    for token, probability in probabilities.items():
        logits[token] = np.log(probability)
    past = Past(rules=rules)
    ids, probabilities = filtered(logits, PARAMS, past)  # type: ignore[assignment]
    ids = ids[probabilities > 1e-6]
    drawn = set()
    for seed in range(200):
        params = SamplingParams(samplers=("top_k", "infill"), top_k=4, seed=seed)
        drawn.add(make_sampler(params, rules).pick("auto", logits.copy())[0])
    assert drawn == set(ids.tolist())
    return drawn


def test_an_end_wins_unless_the_text_is_far_likelier() -> None:
    assert kept({0: 0.10, 1: 0.50, 3: 0.30, 4: 0.10}) == {0}
    assert kept({0: 0.05, 1: 0.55, 3: 0.30, 4: 0.10}) == {0, 1}


def test_a_token_counts_with_those_that_it_begins() -> None:
    # Apart, none of the first three reaches 0.2.
    assert kept({1: 0.19, 2: 0.18, 5: 0.17, 3: 0.46}) == {1, 3}


def test_the_likelier_of_two_stands_for_both() -> None:
    assert kept({1: 0.15, 2: 0.35, 3: 0.5}) == {2, 3}


def test_what_is_far_behind_goes() -> None:
    assert kept({3: 0.74, 4: 0.26}) == {3}
    assert kept({3: 0.6, 4: 0.4}) == {3, 4}


def test_where_all_is_a_guess_it_ends() -> None:
    pieces = TokenPieces((b"", *(bytes([letter]) for letter in b"abcdefgh"), b""), (0, 9))
    logits = np.array([-30.0, *[0.0] * 8, -30.0], np.float32)
    params = SamplingParams(samplers=("top_k", "infill"), top_k=8, seed=1)  # without an end
    for forbidden, expected in (((), 0), ((0,), 9), ((0, 9), 1)):
        past = Past(rules=TokenRules(pieces=pieces, forbidden=forbidden))
        assert filtered(logits, params, past)[0].tolist() == [expected]
        assert make_sampler(params, past.rules).pick("auto", logits.copy())[0] == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_temperature_0_it_does_not_run(temperature: float) -> None:
    logits = np.log(np.array([0.3, 0.4, 0.1, 0.1, 0.1, 1e-9, 1e-9], np.float32))
    params = SamplingParams(samplers=("infill",), temperature=temperature, seed=1)
    expected = 1 if temperature == 0 else 0
    assert make_sampler(params, RULES).pick("auto", logits)[0] == expected
