"""Every architecture on tiny models: the reference against `transformers`, then the CPU executor.

These tests record and lower all differences of the architectures, such as biases and windows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from window_pages import windows_of

from heddle.config import EngineConfig
from heddle.embedding import EmbeddingParams, Pooling
from heddle.errors import ConfigError
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.reference.ops import SequenceCache, SequenceChunk
from heddle.scheduler.sequence import Sequence
from heddle.state import PAGE_TOKENS
from heddle.step import Binding, Chunk, Pool, Pooled, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.state_sizes import known_count
from models.tiny import FAMILIES, MODELS, gemma3, gemma4, llama
from models.tiny.base import TOKENS, TinyModel
from models.tiny.base_scan import TinyScanAlone
from models.tiny.mamba2 import TinyMamba2
from models.tiny.rwkv7 import TinyRwkv7
from steps import execute

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from heddle.executors.cpu.executor import CpuExecutor

every_model = pytest.mark.parametrize("model", MODELS, ids=str)
FIRST = [models[0] for models in FAMILIES.values()]
every_family = pytest.mark.parametrize("model", FIRST, ids=str)


@pytest.fixture
def checkpoint(model: TinyModel, tmp_path: Path) -> GGUFCheckpoint:
    return GGUFCheckpoint.open(model.write(tmp_path / "tiny.gguf"))


@every_model
def test_the_reference_agrees_with_transformers(
    model: TinyModel, checkpoint: GGUFCheckpoint
) -> None:
    logits = ReferenceModel(checkpoint).logits(TOKENS)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)


@every_model
def test_chunks_beside_another_sequence_give_the_same_logits(checkpoint: GGUFCheckpoint) -> None:
    reference = ReferenceModel(checkpoint)
    cache, other = SequenceCache(), SequenceCache()
    parts, start = [], 0
    for turn, count in enumerate((1, 5, 2, 4)):
        own = TOKENS[start : start + count]
        runs = [SequenceChunk(other, turn, [turn]), SequenceChunk(cache, start, own)]
        parts.append(reference.forward(runs)[1:])
        start += count
    np.testing.assert_allclose(np.concatenate(parts), reference.logits(TOKENS), atol=5e-5)


@pytest.mark.parametrize("model", [llama.PLAIN, gemma3.MODELS[0]], ids=str)
def test_a_long_text_is_computed_in_chunks(checkpoint: GGUFCheckpoint) -> None:
    reference = ReferenceModel(checkpoint)
    tokens = [i * i % reference.vocabulary for i in range(600)]
    whole = reference.forward([SequenceChunk(SequenceCache(), 0, tokens)])
    np.testing.assert_allclose(reference.logits(tokens), whole, atol=1e-4)


@every_model
def test_the_executor_agrees_with_the_reference_in_any_chunks(checkpoint: GGUFCheckpoint) -> None:
    """The weights are floats, and both keep keys and values in f16. The remaining difference is
    a few keys and values that round the other way. Which ones depends on the processor, which
    chooses the reference's BLAS: with five of its kernels, the largest difference was 0.0031."""
    tokens = TOKENS * 4
    executor = load(checkpoint, EngineConfig(slots=1, threads=2, context=len(tokens)))
    one_by_one = last_logits(executor, tokens, range(1, len(tokens) + 1))
    expected = ReferenceModel(checkpoint).logits(tokens, "f16")
    np.testing.assert_allclose(one_by_one, expected, atol=6e-3)
    ends = [5, 6, 35, 36, len(tokens)]
    in_chunks = last_logits(executor, tokens, ends)
    assert np.array_equal(in_chunks, one_by_one[[end - 1 for end in ends]])
    executor.close()


@pytest.mark.parametrize(
    "model",
    [replace(model, context=1_100) for model in (llama.PLAIN, *gemma3.MODELS, gemma4.MODELS[0])],
    ids=str,
)
def test_positions_past_a_thousand_agree_with_the_reference(
    model: TinyModel, checkpoint: GGUFCheckpoint
) -> None:
    """Rope tables are computed in parts of 1,024 positions, attention in splits of 256."""
    tokens = np.random.RandomState(6).randint(model.vocabulary, size=model.context).tolist()
    executor = load(checkpoint, EngineConfig(slots=1, threads=2, batch_tokens=128))
    ends = [*range(100, 1_000, 100), *range(1_020, 1_029), 1_099, 1_100]
    found = last_logits(executor, tokens, ends)
    expected = ReferenceModel(checkpoint).logits(tokens, "f16")[[end - 1 for end in ends]]
    np.testing.assert_allclose(found, expected, atol=3e-3)
    executor.close()


@pytest.mark.parametrize(
    "model",
    [
        replace(model, head_dim=32)
        for model in FIRST
        if not isinstance(model, TinyMamba2 | TinyScanAlone | TinyRwkv7)
    ],
    ids=str,
)
@pytest.mark.parametrize("kv_type", ["q8_0", "q4"])
def test_coded_keys_and_values_agree_with_the_reference(
    checkpoint: GGUFCheckpoint, kv_type: str
) -> None:
    """Both multiply codes. Some values round to the next code: 1/127 of the largest value in their
    block. Which ones depends on the processor, which chooses the reference's BLAS. With four of its
    kernels, and with 200 random roundings of matmuls, the largest distance was 0.14 of the error
    that codes make; for most models it is below 0.01."""
    tokens = TOKENS * 4
    config = EngineConfig(slots=1, threads=2, context=len(tokens), kv_type=kv_type)
    if kv_type == "q4" and known_count(checkpoint.hyperparameters, "latent_rank"):
        with pytest.raises(ConfigError, match="kv_type q4 cannot hold the latents"):
            load(checkpoint, config)
        return
    executor, reference = load(checkpoint, config), ReferenceModel(checkpoint)
    one_by_one = last_logits(executor, tokens, range(1, len(tokens) + 1))
    exact, expected = (reference.logits(tokens, each) for each in ("f32", kv_type))
    distance = np.sqrt(np.mean((one_by_one - expected) ** 2))
    assert distance < 0.25 * np.sqrt(np.mean((exact - expected) ** 2))
    ends = [5, 6, 35, 36, len(tokens)]
    in_chunks = last_logits(executor, tokens, ends)
    assert np.array_equal(in_chunks, one_by_one[[end - 1 for end in ends]])
    executor.close()


def last_logits(executor: CpuExecutor, tokens: list[int], ends: Iterable[int]) -> np.ndarray:
    """Logits of the last token of each chunk, which end before the positions `ends`."""
    rows, start = [], 0
    for end in ends:
        pages = range(-(-end // PAGE_TOKENS))
        windows = windows_of(executor.memory, start, end)
        chunk = Chunk(0, start, tokens[start:end], pages, sample=True, windows=windows)
        clears = () if start else (0,)
        rows.append(executor.logits(StepPlan(bindings=(), chunks=(chunk,), clears=clears)))
        start = end
    return np.concatenate(rows)


@every_family
def test_embeddings_agree_with_the_reference_in_any_chunks(checkpoint: GGUFCheckpoint) -> None:
    tokens = TOKENS * 4
    config = EngineConfig(slots=1, threads=2, context=len(tokens), batch_tokens=17)
    executor, reference = load(checkpoint, config), ReferenceModel(checkpoint)
    for pooling in Pooling:
        expected = reference.embedding(tokens, pooling)
        found = [pooled(executor, tokens, pooling, ends) for ends in ([17, 34, 48], [1, 2, 18, 33])]
        pool, windows = Pool(0, complete=False), windows_of(executor.memory, 0, 5)
        begun = Chunk(0, 0, tokens[:5], [0], sample=False, pool=pool, windows=windows)
        binding = Binding(0, EmbeddingParams(pooling), tokens, [])
        execute(executor, StepPlan((binding,), (begun,), clears=(0,)))
        assert np.array_equal(found[0], found[1])
        if pooling is Pooling.NONE:  # states of any length, and no mean that evens out errors
            lengths = np.linalg.norm(expected, axis=1, keepdims=True)
            np.testing.assert_allclose(
                found[0].reshape(expected.shape) / lengths, expected / lengths, atol=3e-2
            )
        else:
            np.testing.assert_allclose(found[0], expected, atol=3e-3)
    executor.close()


def pooled(
    executor: CpuExecutor, tokens: list[int], pooling: Pooling, ends: list[int]
) -> np.ndarray:
    """The embedding, computed in chunks up to `ends` and the rest."""
    sequence = Sequence(0, EmbeddingParams(pooling), tokens, len(tokens), frozenset(), slot=0)
    bindings: tuple[Binding, ...] = (Binding(0, sequence.params, tokens, []),)
    for end in sorted({*ends, len(tokens)}):
        sequence.table.pages = list(range(-(-end // PAGE_TOKENS)))
        sequence.table.windows = windows_of(executor.memory, sequence.computed, end)
        chunk = sequence.chunk(end - sequence.computed)
        clears = (0,) if bindings else ()
        result = execute(executor, StepPlan(bindings, (chunk,), clears=clears))
        sequence.computed, bindings = end, ()
    (last,) = result.pooled
    assert isinstance(last, Pooled)
    return np.frombuffer(last.vector, np.float32)
