"""Each slot samples by its own state, on the default model: beside any other requests, after
preemption, and when the prefix cache has the prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from e2e.test_exactness import bits, run_alone, run_together
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("costless_guesses")]

LOOP = "The cat sat on the mat. The cat sat on the mat. The cat sat on the"
STORY = "Once upon a time there was a loom in a long room, and"
BASE = SamplingParams(temperature=1.0, max_tokens=32, logprobs=2, ignore_eos=True, seed=21)
REQUESTS = [
    (LOOP, replace(BASE, temperature=0, dry_multiplier=0.8)),
    (STORY, replace(BASE, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.3)),
    (STORY, replace(BASE, xtc_probability=0.5, xtc_threshold=0.05, min_p=0.02)),
    (LOOP, replace(BASE, repetition_penalty=1.5, repeat_last_n=8, typical_p=0.8)),
    (STORY, replace(BASE, dynatemp_range=0.8, top_n_sigma=2.0, frequency_penalty=0.7)),
    (LOOP, replace(BASE, bad_words=("mat", "cat sat"), top_p=0.9, min_tokens=9, ignore_eos=False)),
]
HOSTILE = [
    (LOOP * 3, replace(BASE, temperature=9.0, repetition_penalty=100.0, presence_penalty=-2.0)),
    (LOOP, replace(BASE, logit_bias=dict.fromkeys(range(3000), -100.0), dry_multiplier=1000.0)),
    (STORY, replace(BASE, mirostat=2, mirostat_tau=0.0, mirostat_eta=1.0, min_tokens=30)),
    (STORY, replace(BASE, bad_words=tuple("abcdefghijklmnopqrstuvwxyz"), xtc_probability=1.0)),
]


@pytest.fixture(scope="module")
def engine(model_path) -> Iterator[Engine]:
    with Engine.load(model_path, EngineConfig()) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(model_path):
    config = EngineConfig(slots=1, threads=1, prefix_cache=False, speculation="off")
    with Engine.load(model_path, config) as engine:
        return run_alone(engine, REQUESTS)


def test_every_parameter_has_an_effect(engine, expected):
    plain = [(p, replace(BASE, temperature=params.temperature)) for p, params in REQUESTS]
    for result, other in zip(expected, run_alone(engine, plain), strict=True):
        assert result[0] != other[0]


def test_hostile_neighbours_change_nothing(engine, expected):
    for _ in range(2):  # the second time with the prompts in the cache, in slots that others left
        assert run_together(engine, HOSTILE + REQUESTS)[len(HOSTILE) :] == expected
    assert engine.snapshot().prefix_cache.hits > 0


def test_preemption_changes_nothing(model_path, engine):
    """Six sequences that start in 12 pages and want more in the end."""
    requests = [(p, replace(params, max_tokens=90)) for p, params in REQUESTS]
    expected = run_alone(engine, requests)
    page_bytes = engine.model.executor.page_bytes
    with Engine.load(model_path, EngineConfig(kv_cache=12 * page_bytes)) as small:
        assert run_together(small, requests) == expected
        assert small.snapshot().preemptions > 0


def test_dry_breaks_a_loop(engine):
    greedy = replace(BASE, temperature=0, max_tokens=24)
    loop = engine.complete(LOOP, greedy).text
    assert "The cat sat on the mat" in loop
    assert engine.complete(LOOP, replace(greedy, dry_multiplier=2.0)).text.count("cat sat on") == 0


def test_bad_words_do_not_come(engine):
    greedy = replace(BASE, temperature=0)
    [word, other] = ["cat", "sat on"]
    assert word in engine.complete(LOOP, greedy).text
    without = engine.complete(LOOP, replace(greedy, bad_words=(word, other))).text
    assert word not in without
    assert other not in without


def test_stop_tokens_end_an_output_but_not_before_its_least_length(engine):
    greedy = replace(BASE, temperature=0, ignore_eos=True, max_tokens=30)
    free = engine.complete(LOOP, greedy)
    stop = free.tokens[4].token
    stopped = engine.complete(LOOP, replace(greedy, stop_token_ids=(stop,)))
    assert bits(stopped)[1] == bits(free)[1][: len(stopped.tokens)]
    assert stopped.tokens[-1].token == stop
    assert stopped.finish.value == "stop"
    shown = engine.model.tokenizer.decode([token.token for token in stopped.tokens[:-1]])
    assert stopped.text == shown
    later = engine.complete(LOOP, replace(greedy, stop_token_ids=(stop,), min_tokens=8))
    assert stop not in [token.token for token in later.tokens[:8]]


def test_min_tokens_keep_ends_and_stop_strings_away(engine):
    asked = engine.model.chat_prompt([{"role": "user", "content": "Say hello."}])
    greedy = replace(BASE, temperature=0, ignore_eos=False, max_tokens=60)
    short = engine.complete(asked, greedy)
    assert short.finish.value == "stop"
    long = engine.complete(asked, replace(greedy, min_tokens=short.usage.completion_tokens + 5))
    assert long.usage.completion_tokens >= short.usage.completion_tokens + 5
    assert bits(long)[1][: len(short.tokens) - 1] == bits(short)[1][:-1]
    stopped = engine.complete(LOOP, replace(greedy, stop=("mat",)))
    later = engine.complete(LOOP, replace(greedy, stop=("mat",), min_tokens=6))
    assert "mat" not in stopped.text
    assert later.usage.completion_tokens > 6
    assert "mat" in later.text
