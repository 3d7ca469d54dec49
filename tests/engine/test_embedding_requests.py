"""Embeddings through the engine, on the fake executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fake_executor import FakeExecutor, embedding, embeddings_of
from fake_model import fake_model
from heddle import (
    LLM,
    ContextLengthError,
    EmbeddingParams,
    Engine,
    EngineConfig,
    FinishReason,
    InvalidRequestError,
    Pooling,
    SamplingParams,
    UnsupportedParameterError,
    Usage,
)
from heddle.engine.streaming.blocking import Collector

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    Start = Callable[..., Engine]

PROMPT = [(7 * i * i + 3 * i) % 31 + 1 for i in range(100)]


@pytest.mark.parametrize("batch_tokens", [1, 7, 512])
@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", embedding(PROMPT)),
        ("last", embedding(PROMPT[-1:])),
        ("none", embeddings_of(PROMPT)),
    ],
)
def test_pooling_covers_all_chunks(
    start: Start, pooling: str, expected: array[float], batch_tokens: int
) -> None:
    engine = start(batch_tokens=batch_tokens)
    found = engine.embed(PROMPT, EmbeddingParams(pooling))  # type: ignore[arg-type]
    assert found.vector == expected
    assert found.usage == Usage(100, 0)
    assert found.usage.prompt_seconds > 0
    assert engine.snapshot().finished[FinishReason.STOP] == 1
    assert engine.snapshot().prompt_tokens == 100


def test_only_last_pooling_takes_prefix_hits(engine: Engine) -> None:
    cached = [
        engine.embed(PROMPT, EmbeddingParams(pooling)).usage.cached_tokens
        for kind in (Pooling.MEAN, Pooling.CLS, Pooling.NONE, Pooling.LAST)
        for pooling in (kind, kind)
    ]
    assert cached == [0, 0, 0, 0, 0, 0, 99, 99]
    assert engine.complete(PROMPT, SamplingParams(max_tokens=1)).usage.cached_tokens == 99


def test_embeddings_keep_salts_apart(engine: Engine) -> None:
    engine.embed(PROMPT, EmbeddingParams(Pooling.LAST, "a"))
    usages = [engine.embed(PROMPT, EmbeddingParams(Pooling.LAST, salt)).usage for salt in "ba"]
    assert [usage.cached_tokens for usage in usages] == [0, 99]


def test_a_text_may_fill_the_context(start: Start) -> None:
    engine = start(context=100)
    assert engine.embed(PROMPT).vector == embedding(PROMPT)
    with pytest.raises(ContextLengthError, match="Send at most 100"):
        engine.embed([*PROMPT, 1])


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [(Pooling.MEAN, embedding(PROMPT)), (Pooling.NONE, embeddings_of(PROMPT))],
)
def test_preemption_restarts_the_pooling(
    start: Start, pooling: Pooling, expected: array[float]
) -> None:
    """Growing streams take the pages of the youngest sequence, which is being pooled."""
    engine = start(executor=FakeExecutor(pages=9), slots=6, batch_tokens=7)
    params = SamplingParams(seed=1, ignore_eos=True, max_tokens=60)
    collectors = [Collector() for _ in range(6)]
    requests: list[Any] = [([n, n], params, collectors[n]) for n in range(5)]
    engine.submit_many([*requests, (PROMPT, EmbeddingParams(pooling), collectors[5])])
    assert collectors[5].wait_embedding().vector == expected
    assert all(len(collector.wait().tokens) == 60 for collector in collectors[:5])
    assert engine.snapshot().preemptions > 0


def test_the_vectors_of_a_text_s_tokens_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start()
    monkeypatch.setattr("heddle.engine.requests.request.MAX_TOKEN_NUMBERS", 9)  # of two a token
    assert engine.embed([1, 2, 3, 4], EmbeddingParams(Pooling.NONE))
    said = "the prompt has 5 tokens; with pooling none it may have 4"
    with pytest.raises(InvalidRequestError, match=said) as refused:
        engine.embed([1, 2, 3, 4, 5], EmbeddingParams(Pooling.NONE))
    assert refused.value.param == "prompt"
    assert engine.embed([1, 2, 3, 4, 5])


def test_an_embedding_request_can_be_cancelled_midway(start: Start) -> None:
    executor = FakeExecutor()
    engine = start(executor=executor, batch_tokens=1, slots=1)
    executor.before_step = lambda step: ticket.cancel() if step == 50 else None
    ends: list[FinishReason | None] = []
    executor.gate.clear()
    ticket = engine.submit(PROMPT, EmbeddingParams(), lambda delta: ends.append(delta.finish))
    executor.gate.set()
    assert engine.embed([1, 2]).vector == embedding([1, 2])
    assert ends == [FinishReason.CANCELLED]


def test_a_batch_of_any_length_comes_back_in_order() -> None:
    model = fake_model(FakeExecutor())
    with LLM(Engine(model, EngineConfig(slots=2, queue=1))) as llm:
        texts = ["a" * length for length in range(1, 30)]
        found = llm.embed(texts)
        assert (found.shape, found.dtype) == ((29, 2), np.float32)
        assert found.tolist() == [embedding([1] * length).tolist() for length in range(1, 30)]
        assert llm.embed("aab", pooling="last").tolist() == [embedding([2]).tolist()]
        assert llm.embed([[1, 2], "ab"]).tolist() == [embedding([1, 2]).tolist()] * 2
        assert llm.embed([]).shape == (0, 2)
        with pytest.raises(InvalidRequestError, match="must be mean, cls, last or none, got 'max'"):
            llm.embed("a", pooling="max")
        with pytest.raises(UnsupportedParameterError, match="Set pooling to mean, cls or last"):
            llm.embed("a", pooling="none")


def test_the_model_setting_is_the_default_pooling() -> None:
    model = fake_model(FakeExecutor(), pooling=Pooling.LAST)
    with Engine(model, EngineConfig()) as engine:
        assert engine.embed([3, 4]).vector == embedding([4])
        assert engine.embed([3, 4], EmbeddingParams(Pooling.MEAN)).vector == embedding([3, 4])
