"""Log probabilities of prompts on the default model: always the same bits, those of decode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle import _native
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.extensions.reference.model import ReferenceModel
from heddle.sampling_params import SamplingParams
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from story import STORY

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.outputs import Output, PromptLogprob

pytestmark = pytest.mark.model

PROMPTS = [STORY, "def fibonacci(n):\n    ", "1 2 3 4 5 6", STORY * 3]
SCORES = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=5)
TEXT = SamplingParams(temperature=0.9, seed=7, max_tokens=24, logprobs=5, ignore_eos=True)

Bits = tuple["PromptLogprob | None", ...]


def bits(output: Output) -> Bits:
    assert output.prompt_logprobs is not None
    assert output.usage.cached_tokens == 0
    return output.prompt_logprobs


@pytest.fixture(scope="module")
def expected(model_path: Path) -> list[Bits]:
    config = EngineConfig(slots=1, threads=1, prefix_cache=False)
    with Engine.load(model_path, config) as engine:
        return [bits(engine.complete(prompt, SCORES)) for prompt in PROMPTS]


@pytest.mark.parametrize("batch_tokens", [1, 19, 512])
def test_no_chunk_changes_a_bit(model_path: Path, expected: list[Bits], batch_tokens: int) -> None:
    """With one token a step there is one row of logits a step; else there are blocks of them."""
    prompts = PROMPTS[:3] if batch_tokens == 1 else PROMPTS
    with Engine.load(model_path, EngineConfig(batch_tokens=batch_tokens)) as engine:
        assert [bits(engine.complete(p, SCORES)) for p in prompts] == expected[: len(prompts)]


def test_no_company_changes_a_bit(model_path: Path, expected: list[Bits]) -> None:
    requests = [(prompt, SCORES) for prompt in PROMPTS]
    requests += [(prompt, TEXT) for prompt in PROMPTS]
    with Engine.load(model_path, EngineConfig(batch_tokens=70)) as engine:
        alone = [engine.complete(*request).tokens for request in requests[4:]]
        with ThreadPoolExecutor(8) as pool:
            outputs = list(pool.map(lambda request: engine.complete(*request), requests))
    assert [bits(output) for output in outputs[:4]] == expected
    assert [output.tokens for output in outputs[4:]] == alone


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_no_instruction_level_changes_a_bit(
    model_path: Path, expected: list[Bits], isa: str
) -> None:
    with Engine.load(model_path, EngineConfig(isa=isa)) as engine:
        assert [bits(engine.complete(prompt, SCORES)) for prompt in PROMPTS[1:3]] == expected[1:3]


def test_a_token_has_the_bits_it_had_when_it_was_sampled(model_path: Path) -> None:
    with Engine.load(model_path, EngineConfig()) as engine:
        prompt = engine.model.tokenizer.encode(STORY)
        output = engine.complete(prompt, TEXT)
        whole = prompt + [token.token for token in output.tokens]
        params = replace(SCORES, max_tokens=1, logprobs=5)
        scored = engine.complete(whole, params)
    told = bits(scored)[len(prompt) :]
    for token, score in zip(output.tokens, told, strict=True):
        assert score is not None
        assert (score.token, score.logprob, score.top) == (token.token, token.logprob, token.top)


def test_they_are_those_of_the_reference(model_path: Path, expected: list[Bits]) -> None:
    """The executor's activations are int8; ranks of near ties may differ."""
    reference = ReferenceModel(GGUFCheckpoint.open(model_path))
    tokens = [one.token for one in expected[0] if one is not None]
    with Engine.load(model_path, EngineConfig()) as engine:
        first = engine.model.tokenizer.encode(STORY)[0]
    logits = reference.logits([first, *tokens[:-1]], "f16").astype(np.float64)
    normaliser = np.log(np.exp(logits).sum(axis=1))
    rows = np.arange(len(tokens))
    own = logits[rows, tokens]
    scores = [one for one in expected[0] if one is not None]
    difference = np.array([one.logprob for one in scores]) - (own - normaliser)
    assert np.sqrt(np.mean(difference**2)) < 0.3
    ranks = 1 + (logits > own[:, None]).sum(axis=1)
    told = np.array([one.rank for one in scores])
    assert np.median(np.abs(told - ranks) / ranks) < 0.1
    likeliest = [one.rank == 1 for one in scores]
    assert np.mean(likeliest == (ranks == 1)) > 0.9
    assert all(one.top[0][0] == one.token for one in scores if one.rank == 1)
    assert all(one.top[one.rank - 1][0] == one.token for one in scores if one.rank <= 5)
