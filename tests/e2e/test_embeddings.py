"""Embeddings on the default model: always the same bits, near the reference, and useful."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle import _native
from heddle.config import EngineConfig
from heddle.embedding import EmbeddingParams, Pooling
from heddle.engine.engine import Engine
from heddle.engine.streaming.blocking import Collector
from heddle.extensions.reference.model import ReferenceModel
from heddle.sampling_params import SamplingParams
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from story import STORY

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

pytestmark = pytest.mark.model

TEXTS = [STORY, "def fibonacci(n):\n    ", "1 2 3 4 5 6", STORY * 3]
REQUESTS = [(text, EmbeddingParams(pooling)) for pooling in Pooling for text in TEXTS]
STREAM = SamplingParams(temperature=0.9, seed=7, max_tokens=60, ignore_eos=True)


def embed_together(engine: Engine) -> list[array[float]]:
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        return [one.vector for one in pool.map(lambda request: engine.embed(*request), REQUESTS)]


@pytest.fixture(scope="module")
def expected(model_path: Path) -> list[array[float]]:
    config = EngineConfig(slots=1, threads=1, prefix_cache=False)
    with Engine.load(model_path, config) as engine:
        return [engine.embed(*request).vector for request in REQUESTS]


@pytest.mark.parametrize("batch_tokens", [19, 512])
def test_no_chunk_changes_a_bit(
    model_path: Path, expected: list[array[float]], batch_tokens: int
) -> None:
    with Engine.load(model_path, EngineConfig(batch_tokens=batch_tokens)) as engine:
        for _ in range(2):  # the second time the last token's state is computed after a hit
            assert [engine.embed(*request).vector for request in REQUESTS] == expected
        assert engine.snapshot().prefix_cache.hits >= len(TEXTS)


def test_no_company_changes_a_bit(model_path: Path, expected: list[array[float]]) -> None:
    with Engine.load(model_path, EngineConfig(batch_tokens=70)) as engine:
        alone = engine.complete(STORY, STREAM)
        stream = engine.stream(STORY, STREAM)
        assert embed_together(engine) == expected
        assert "".join(delta.text for delta in stream) == alone.text


def test_preemption_changes_no_bit(model_path: Path, expected: list[array[float]]) -> None:
    """Streams that grow take the pages of the youngest, which is just being pooled."""
    with Engine.load(model_path, EngineConfig(slots=1)) as engine:
        page_bytes = engine.model.executor.memory.page_bytes
    pages = 4 + 6  # what they need at first
    config = EngineConfig(slots=5, batch_tokens=8, kv_cache=pages * page_bytes)
    with Engine.load(model_path, config) as engine:
        collectors = [Collector() for _ in range(5)]
        streams = [(f"{n} times", STREAM, collectors[n]) for n in range(4)]  # no common prefix
        engine.submit_many([*streams, (STORY * 3, EmbeddingParams(Pooling.MEAN), collectors[4])])
        assert collectors[4].wait_embedding().vector == expected[3]
        assert len({collector.wait() for collector in collectors[:4]}) == 4
        assert engine.snapshot().preemptions > 0


@pytest.mark.parametrize("isa", _native.isa_levels())
def test_no_instruction_level_changes_a_bit(
    model_path: Path, expected: list[array[float]], isa: str
) -> None:
    with Engine.load(model_path, EngineConfig(isa=isa)) as engine:
        for index in (1, 2, 5, 6):
            assert engine.embed(*REQUESTS[index]).vector == expected[index]


def test_they_are_those_of_the_reference(model_path: Path, expected: list[array[float]]) -> None:
    """But for activations in int8 and keys in f16."""
    reference = ReferenceModel(GGUFCheckpoint.open(model_path))
    with Engine.load(model_path, EngineConfig()) as engine:
        tokens = [engine.model.tokenizer.encode(text) for text in TEXTS]
    for (_, params), vector, own in zip(REQUESTS, expected, len(Pooling) * tokens, strict=True):
        assert params.pooling is not None
        found = np.frombuffer(vector, np.float32).astype(np.float64)
        exact = reference.embedding(own, params.pooling)
        if params.pooling is Pooling.NONE:
            found = found.reshape(exact.shape)
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
            assert np.all(np.sum(found * exact, axis=1) > 0.97 * lengths)
        else:
            assert abs(np.linalg.norm(found) - 1) < 1e-6
            assert found @ exact > 0.995


def test_like_is_nearer_than_unlike(model_path: Path) -> None:
    texts = ["The cat sat on the mat.", "A kitten rests on a rug.", "Interest rates rose again."]
    with Engine.load(model_path, EngineConfig()) as engine:
        vectors = [engine.embed(text).vector for text in texts]
    cat, kitten, money = (np.frombuffer(vector, np.float32) for vector in vectors)
    assert cat @ kitten > max(cat @ money, kitten @ money)
