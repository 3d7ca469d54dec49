"""The bias of engram tables in the native sampler and in its reference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engram_writer import Entries, write_version_2
from heddle import _native
from heddle.executors.cpu.samplers import make_sampler
from heddle.extensions.engrams.bias import EngramBias
from heddle.extensions.reference.engram_bias import engram_bias
from heddle.extensions.reference.sampler import Past, sample
from heddle.extensions.torch.engram import EngramHistory
from heddle.sampling_params import SamplingParams
from heddle.token_rules import LogitEdit, TokenRules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    Opened: TypeAlias = Callable[[Entries], _native.Engram]

VOCABULARY = 12
OPEN, CLOSE = 10, 11
GREEDY = SamplingParams(temperature=0, seed=0)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    def make(table: Entries) -> _native.Engram:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.engr"
        with write_version_2(path, table, VOCABULARY).open("rb") as file:
            return _native.Engram(file.fileno())

    return make


def picked(
    bias: EngramBias,
    tokens: Sequence[int],
    logits: Sequence[float],
    params: SamplingParams = GREEDY,
    mask: bytes = b"",
) -> int:
    """The token that the native sampler picks, which is that of the reference."""
    rules = TokenRules(extensions=(bias,))
    row = np.array(logits, np.float32)
    sampler = make_sampler(params, rules)
    sampler.observe_prompt(np.array(tokens, np.int32))
    sampler.edit(LogitEdit(mask))
    token = sampler.pick("auto", row)[0]
    past = Past(list(tokens), [], rules, edit=LogitEdit(mask))
    assert token == sample(row, params, past).token
    return token


def test_the_two_forms_are_what_they_say(opened: Opened) -> None:
    table = opened({(1,): {2: 3, 3: 1}})
    lift = engram_bias(EngramBias(((table, 1.0),), 0.5), [1])
    literal = engram_bias(EngramBias(((table, 1.0),), 0.5, literal=True), [1])
    for token, p in ((2, 0.75), (3, 0.25)):
        assert lift[token] == pytest.approx(0.5 * (math.log(p + 1e-10) - math.log(1e-10)))
        assert literal[token] == pytest.approx(0.5 * math.log(p + 1e-10))
    assert lift.keys() == literal.keys() == {2, 3}


def test_the_lift_raises_predictions_and_the_literal_form_lowers_them(opened: Opened) -> None:
    table = opened({(1,): {2: 1, 3: 1}})
    flat = [0.0] * VOCABULARY
    assert picked(EngramBias(((table, 1.0),), 0.1), [1], flat) == 2
    literal = EngramBias(((table, 1.0),), 1.0, literal=True)
    ahead = [0, 0, 0.5, 0.6, 0, 0, 0, 0, 0, 0, 0, 0]
    assert picked(literal, [1], ahead) == 0
    assert picked(literal, [4], ahead) == 3


@pytest.mark.parametrize("lead", [-1e-3, 1e-3])
def test_the_bias_has_the_size_of_its_formula(opened: Opened, lead: float) -> None:
    """Another token is ahead by a little less, or a little more, than the bias."""
    table = opened({(1,): {2: 1, 3: 3}})
    size = 0.3 * (math.log(0.25) - math.log(1e-10))
    logits = [0.0] * VOCABULARY
    logits[3], logits[5] = -50.0, size + lead
    assert picked(EngramBias(((table, 1.0),), 0.3), [1], logits) == (2 if lead < 0 else 5)


def test_tables_merge_by_weight_and_those_without_a_match_do_not_count(opened: Opened) -> None:
    one, two = opened({(1,): {2: 1}}), opened({(1,): {3: 1}, (4,): {5: 1, 6: 1}})
    both = EngramBias(((one, 1.0), (two, 3.0)), 1.0)
    assert engram_bias(both, [1]) == pytest.approx(
        {2: math.log(0.25) - math.log(1e-10), 3: math.log(0.75) - math.log(1e-10)}, rel=1e-6
    )
    assert engram_bias(both, [4]) == engram_bias(EngramBias(((two, 1.0),), 1.0), [4])
    flat = [0.0] * VOCABULARY
    assert picked(both, [1], flat) == 3
    assert picked(EngramBias(((one, 3.0), (two, 1.0)), 1.0), [1], flat) == 2


def test_a_token_of_two_tables_has_the_sum_of_their_masses(opened: Opened) -> None:
    one, two = opened({(1,): {2: 1}}), opened({(1,): {2: 1, 3: 1}})
    both = EngramBias(((one, 1.0), (two, 3.0)), 1.0)
    expected = {2: math.log(2.5 / 4), 3: math.log(1.5 / 4)}
    lift = math.log(1e-10)
    assert engram_bias(both, [1]) == pytest.approx(
        {token: value - lift for token, value in expected.items()}, rel=1e-6
    )
    tokens, biases = EngramHistory(both, [1]).biases([1])
    found = dict(zip(tokens.tolist(), biases.tolist(), strict=True))
    assert found == pytest.approx(engram_bias(both, [1]), rel=1e-6)
    logits = [0.0] * VOCABULARY
    logits[3] = 0.2  # less than the difference of the sums, more than that of the last masses
    assert picked(both, [1], logits) == 2


def test_the_bias_ends_when_nothing_matches(opened: Opened) -> None:
    bias = EngramBias(((opened({(1,): {2: 1}}), 1.0),), 1.0)
    sampler = make_sampler(GREEDY, TokenRules(extensions=(bias,)))
    sampler.observe_prompt(np.array([1], np.int32))
    logits = np.arange(VOCABULARY, dtype=np.float32)
    assert [sampler.pick("auto", logits)[0] for _ in range(3)] == [2, 11, 11]


def test_there_is_no_bias_inside_reasoning_where_marks_are_given(opened: Opened) -> None:
    table = opened({(1,): {2: 1}})
    marked = EngramBias(((table, 1.0),), 1.0, opening=(OPEN,), closing=(CLOSE, CLOSE))
    flat = [0.0] * VOCABULARY
    for tokens, expected in (
        ([1], 2),
        ([OPEN, 1], 0),
        ([OPEN, 1, CLOSE, 1], 0),
        ([OPEN, 1, CLOSE, CLOSE, 1], 2),
        ([OPEN, CLOSE, CLOSE, OPEN, 5, 1], 0),
    ):
        assert picked(marked, tokens, flat) == expected
    assert picked(EngramBias(((table, 1.0),), 1.0), [OPEN, 1], flat) == 2
    running = make_sampler(GREEDY, TokenRules(extensions=(marked,)))
    running.observe_prompt(np.array([OPEN, 1], np.int32))
    row = np.zeros(VOCABULARY, np.float32)
    assert running.pick("auto", row)[0] == 0
    running.observe_output(np.array([CLOSE, CLOSE, 1], np.int32))
    assert running.pick("auto", row)[0] == 2


def test_a_mask_excludes_what_the_table_predicts(opened: Opened) -> None:
    bias = EngramBias(((opened({(1,): {2: 1}}), 1.0),), 4.0)
    assert picked(bias, [1], [0.0] * VOCABULARY, mask=bytes([0b00110000])) == 4


def test_logit_bias_adds_to_it_and_penalties_come_after_it(opened: Opened) -> None:
    bias = EngramBias(((opened({(1,): {2: 1}}), 1.0),), 0.1)
    size = 0.1 * -math.log(1e-10)
    flat = [0.0] * VOCABULARY
    for against, expected in ((0.99, 2), (1.01, 0)):
        params = SamplingParams(temperature=0, seed=0, logit_bias={2: -size * against})
        assert picked(bias, [1], flat, params) == expected
    # The penalty divides the lifted logit: 2.3 / 2 is below 1.2.
    ahead = [0, 0, 0, 1.2, 0, 0, 0, 0, 0, 0, 0, 0]
    doubled = SamplingParams(temperature=0, seed=0, repetition_penalty=2.0)
    assert picked(bias, [2, 1], ahead) == 2
    assert picked(bias, [2, 1], ahead, doubled) == 3


def test_logprobs_are_those_of_the_raw_logits(opened: Opened) -> None:
    bias = EngramBias(((opened({(1,): {2: 1}}), 1.0),), 1.0)
    params = SamplingParams(temperature=0, seed=0, logprobs=3)
    logits = np.arange(VOCABULARY, dtype=np.float32)
    plain = make_sampler(params).pick("auto", logits)
    sampler = make_sampler(params, TokenRules(extensions=(bias,)))
    sampler.observe_prompt(np.array([1], np.int32))
    token, logprob, top = sampler.pick("auto", logits)
    assert token == 2
    assert top == plain[2]
    assert logprob == pytest.approx(plain[1] - 9, abs=1e-5)
