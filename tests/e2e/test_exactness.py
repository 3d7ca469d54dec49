"""A request's tokens and logprobs are bit-equal whatever shares the batch, on the default model.

One engine, with one slot and one thread, computes every request by itself, without guesses. All
other engines, with other neighbours, chunks, threads, kernels, page pools and guesses, must give
the same bits.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from heddle import _native
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.sampling_params import SamplingParams
from story import STORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.outputs import Output

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("costless_guesses")]

GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=5, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.9, top_p=0.95, seed=7)
PENALISED = replace(
    GREEDY, temperature=1.2, seed=11, repetition_penalty=1.2, frequency_penalty=0.5, top_k=50
)
WHOLE = replace(GREEDY, temperature=1.0, seed=2**63, logit_bias={198: -5.0}, logprobs=0)
REQUESTS = [
    ("The capital of France is", GREEDY),
    (STORY, DRAWN),
    ("def fibonacci(n):\n", GREEDY),
    ("Once upon a time", PENALISED),
    (STORY * 10, GREEDY),  # more than 512 tokens: cut even in the largest chunk
    (STORY[:90], WHOLE),
    (STORY * 3, PENALISED),
    ("1 2 3 4 5 6", DRAWN),
]


def bits(output: Output) -> tuple[object, ...]:
    return output.text, output.tokens, output.finish, output.usage.completion_tokens


def run_alone(engine: Engine, requests: Sequence[tuple[str, SamplingParams]] = REQUESTS):
    return [bits(engine.complete(*request)) for request in requests]


def run_together(engine: Engine, requests: Sequence[tuple[str, SamplingParams]] = REQUESTS):
    with ThreadPoolExecutor(len(requests)) as pool:
        return [bits(output) for output in pool.map(lambda r: engine.complete(*r), requests)]


@pytest.fixture(scope="module")
def expected(model_path):
    config = EngineConfig(slots=1, threads=1, prefix_cache=False, speculation="off")
    with Engine.load(model_path, config) as engine:
        return run_alone(engine)


def test_the_requests_differ(expected):
    """Or the comparisons below would prove little."""
    assert len({result[0] for result in expected}) == len(REQUESTS)


@pytest.mark.parametrize(("threads", "speculation"), [(1, "auto"), (2, "auto"), (2, "off")])
def test_among_seven_others(model_path, expected, threads, speculation):
    config = EngineConfig(threads=threads, speculation=speculation)
    with Engine.load(model_path, config) as engine:
        assert run_together(engine) == expected
        assert run_together(engine, REQUESTS[::-1]) == expected[::-1]
        assert (engine.snapshot().accepted_tokens > 0) == (speculation == "auto")


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_in_prompt_chunks(model_path, expected, chunk):
    config = EngineConfig(threads=2, batch_tokens=chunk, slots=1)
    with Engine.load(model_path, config) as engine:
        assert run_alone(engine) == expected


def test_in_small_mixed_steps(model_path, expected):
    config = EngineConfig(threads=2, batch_tokens=40, slots=5)
    with Engine.load(model_path, config) as engine:
        assert run_together(engine) == expected


def test_after_preemption(model_path):
    """Seven sequences that start in 16 pages and want 26 in the end."""
    requests = [(p, replace(params, max_tokens=60)) for p, params in REQUESTS if len(p) < 1000]
    with Engine.load(model_path, EngineConfig(slots=1, speculation="off")) as engine:
        expected = run_alone(engine, requests)
        page_bytes = engine.model.executor.memory.page_bytes
    with Engine.load(model_path, EngineConfig(kv_cache=16 * page_bytes)) as engine:
        assert run_together(engine, requests) == expected
        assert engine.snapshot().preemptions > 0


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_at_every_instruction_level(model_path, expected, isa):
    short = [(prompt, replace(params, max_tokens=6)) for prompt, params in REQUESTS[:4]]
    with Engine.load(model_path, EngineConfig(isa=isa)) as engine:
        results = run_together(engine, short)
    for result, whole in zip(results, expected, strict=False):
        assert result[1] == whole[1][:6]


@pytest.mark.parametrize("kv_type", ["q8_0", "q4"])
def test_with_keys_and_values_as_codes(model_path, expected, kv_type):
    """Other bits than f16 gives, and as exact in chunks, in company and after preemption."""
    requests = [(p, replace(params, max_tokens=60)) for p, params in REQUESTS if len(p) < 1000]
    alone = EngineConfig(slots=1, threads=1, kv_type=kv_type, speculation="off")
    with Engine.load(model_path, alone) as engine:
        results = run_alone(engine, requests)
        page_bytes = engine.model.executor.memory.page_bytes
    assert results[0][1] != expected[0][1]
    crowded = replace(alone, slots=8, threads=2, batch_tokens=50, kv_cache=16 * page_bytes)
    crowded = replace(crowded, speculation="auto")
    with Engine.load(model_path, crowded) as engine:
        assert run_together(engine, requests) == results
        assert engine.snapshot().preemptions > 0


def test_identical_requests_give_one_answer(model_path, expected):
    with Engine.load(model_path, EngineConfig()) as engine:
        assert set(run_together(engine, REQUESTS[:1] * 16)) == {expected[0]}
        assert set(run_together(engine, REQUESTS[3:4] * 16)) == {expected[3]}
