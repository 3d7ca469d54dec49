"""Driven sequences on the default model have the bits of `generate`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from heddle.engine.driven import SampledToken

pytestmark = pytest.mark.model

PROMPT = "Once upon a time there was a loom in a long room, and " * 4


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[Engine]:
    with Engine.load(model_path, EngineConfig(slots=2, context=256)) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_threads_and_trims_and_evictions_change_no_bit(engine: Engine, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, logprobs=1, mirostat=2)
    prompt = engine.model.tokenizer.encode(PROMPT)
    expected = engine.complete(
        prompt,
        SamplingParams(
            temperature=temperature, seed=3, logprobs=1, mirostat=2, ignore_eos=True, max_tokens=40
        ),
    ).tokens

    def drive(trim: int) -> list[SampledToken]:  # three of them, and two slots
        sequence = engine.create_sequence(params)
        results = [sequence.decode_prompt(prompt)]
        results += [sequence.sample_next() for _ in range(20 + trim)]
        sequence.trim(len(prompt) + 20)
        return results[:20] + [sequence.sample_next() for _ in range(20)]

    with ThreadPoolExecutor(3) as pool:
        for results in pool.map(drive, (0, 5, 9)):
            assert [(r.token, r.logprob, r.top) for r in results] == [
                (token.token, token.logprob, token.top) for token in expected
            ]


def test_what_is_healed_is_text_that_the_prompt_begins(engine: Engine) -> None:
    tokenizer = engine.model.tokenizer
    for prompt in ("The capital of Fra", "def add(a, b):\n    ret", "http:", "It is"):
        sequence = engine.create_sequence(SamplingParams(temperature=0))
        result = sequence.decode_prompt(tokenizer.encode(prompt), heal=True)
        text = tokenizer.decode(sequence.snapshot().tokens)
        assert text == prompt + result.text
        assert result.text


def test_a_word_goes_on_in_a_large_vocabulary(engine: Engine) -> None:
    sequence = engine.create_sequence(SamplingParams(temperature=0))
    prompt = engine.model.tokenizer.encode("The cat sat on the mat")
    assert not sequence.decode_prompt(prompt).text[0].isalnum()
    sequence.force_word_continuation()
    assert sequence.decode_prompt(prompt).text[0].isalnum()
