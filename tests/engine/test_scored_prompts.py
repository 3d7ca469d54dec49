"""Log probabilities of prompts through the engine, on the fake executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fake_executor import FakeExecutor, solo_output, solo_scores
from heddle.errors import ContextLengthError, InvalidRequestError, NonFiniteLogitsError
from heddle.outputs import FinishReason, Usage
from heddle.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.engine import Engine

    Start = Callable[..., Engine]

PROMPT = [(7 * i * i + 3 * i) % 31 + 1 for i in range(100)]


def scored(**fields: int) -> SamplingParams:
    return SamplingParams(seed=1, ignore_eos=True, prompt_logprobs=2, **fields)


@pytest.mark.parametrize("batch_tokens", [1, 7, 512])
def test_prompt_logprobs_are_the_same_for_any_chunks(start: Start, batch_tokens: int) -> None:
    output = start(batch_tokens=batch_tokens).complete(PROMPT, scored(max_tokens=5))
    assert output.prompt_logprobs == solo_scores(PROMPT, 2)
    assert [token.token for token in output.tokens] == solo_output(
        PROMPT, scored(max_tokens=5), 512
    )
    assert output.finish is FinishReason.LENGTH


def test_prompt_logprobs_come_before_the_first_token(start: Start) -> None:
    deltas = list(start(batch_tokens=30).stream(PROMPT, scored(max_tokens=2)))
    # The fake model's logits cost a tenth of a token: 27 of them fill a step.
    # The first token has no logprob.
    assert [len(delta.prompt_logprobs) for delta in deltas] == [28, 27, 27, 18, 0, 0]
    assert [len(delta.tokens) for delta in deltas] == [0, 0, 0, 0, 1, 1]


def test_prompt_logprobs_are_absent_unless_requested(engine: Engine) -> None:
    assert engine.complete(PROMPT, SamplingParams(max_tokens=1)).prompt_logprobs is None


def test_a_prompt_of_one_token_has_no_logprob(engine: Engine) -> None:
    assert engine.complete([5], scored(max_tokens=1)).prompt_logprobs == (None,)
    assert engine.complete([5], scored(max_tokens=0)).prompt_logprobs == (None,)


@pytest.mark.parametrize("wanted", [None, 0, 2])
def test_a_prompt_can_be_scored_without_output(engine: Engine, wanted: int | None) -> None:
    output = engine.complete(PROMPT, SamplingParams(max_tokens=0, prompt_logprobs=wanted))
    assert (output.text, output.tokens, output.finish) == ("", (), FinishReason.LENGTH)
    assert output.usage == Usage(100, 0)
    assert output.usage.prompt_seconds > 0
    told = None if wanted is None else solo_scores(PROMPT, wanted)
    assert output.prompt_logprobs == told
    assert engine.snapshot().prompt_tokens == 100


def test_a_prompt_without_output_may_fill_the_context(start: Start) -> None:
    engine = start(context=100)
    assert engine.complete(PROMPT, scored(max_tokens=0)).prompt_logprobs is not None
    with pytest.raises(ContextLengthError, match="Send at most 100"):
        engine.complete([*PROMPT, 1], scored(max_tokens=0))
    with pytest.raises(ContextLengthError, match=r"output included\. Send at most 99"):
        engine.complete(PROMPT, scored(max_tokens=1))


def test_a_scored_prompt_takes_no_prefix_hits_and_publishes_its_own(engine: Engine) -> None:
    for _ in range(2):
        output = engine.complete(PROMPT, scored(max_tokens=0))
        assert output.usage.cached_tokens == 0
        assert output.prompt_logprobs == solo_scores(PROMPT, 2)
    stats = engine.snapshot().prefix_cache
    assert (stats.hits, stats.misses) == (0, 0), "it asked for nothing"
    output = engine.complete(PROMPT, SamplingParams(seed=1, max_tokens=1))
    assert output.usage.cached_tokens == 99


def test_preemption_repeats_no_prompt_logprobs(start: Start) -> None:
    executor = FakeExecutor(pages=8)
    engine = start(executor=executor, slots=4)
    params = scored(max_tokens=60)
    executor.gate.clear()  # held until all are queued
    streams = [engine.stream([*PROMPT[:40], last], params) for last in range(1, 5)]
    executor.gate.set()
    for last, stream in enumerate(streams, 1):
        told = [one for delta in stream for one in delta.prompt_logprobs]
        assert tuple(told) == solo_scores([*PROMPT[:40], last], 2)
    assert engine.snapshot().preemptions > 0


def test_a_prompt_that_cannot_be_scored_fails_alone(start: Start) -> None:
    executor = FakeExecutor(poisonous=lambda history: history[-1] == 31)
    engine = start(executor=executor, batch_tokens=8)
    stream = engine.stream([*PROMPT[:3], 5], scored(max_tokens=30))
    with pytest.raises(NonFiniteLogitsError):
        engine.complete([1, 2, 31, 3, 4], scored(max_tokens=1))
    assert sum(len(delta.tokens) for delta in stream) == 30


def test_a_driven_sequence_refuses_prompt_logprobs(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="prompt_logprobs has no meaning"):
        engine.create_sequence(SamplingParams(prompt_logprobs=1))
