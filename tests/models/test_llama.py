"""llama.py over the reference ops against `transformers`, and its checks of a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_llama import MODELS, PLAIN, TOKENS, TinyLlama

from gguf_writer import write_gguf
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.kernels.reference import Run, SequenceCache
from heddle.models import architectures, build
from heddle.runner.reference import ReferenceModel
from heddle.weights.gguf import GGUFFile

EXPECTED = json.loads((Path(__file__).parent / "data" / "llama_logits.json").read_text())


def reference(model: TinyLlama, folder: Path) -> ReferenceModel:
    path = model.write(folder / "tiny.gguf", EXPECTED[model.name]["rope_factors"])
    with GGUFFile.open(path) as file:
        return ReferenceModel(file)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_logits_are_those_of_transformers(model: TinyLlama, tmp_path: Path) -> None:
    expected = np.array(EXPECTED[model.name]["logits"])
    logits = reference(model, tmp_path).logits(TOKENS)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)


def test_chunks_beside_another_sequence_give_the_same_logits(tmp_path: Path) -> None:
    model = reference(PLAIN, tmp_path)
    cache, other = SequenceCache(), SequenceCache()
    parts, start = [], 0
    for turn, count in enumerate((1, 5, 2, 4)):
        runs = [Run(other, turn, [turn]), Run(cache, start, TOKENS[start : start + count])]
        parts.append(model.forward(runs)[1:])
        start += count
    np.testing.assert_allclose(np.concatenate(parts), model.logits(TOKENS), atol=1e-5)


def test_a_long_text_is_computed_in_chunks(tmp_path: Path) -> None:
    model = reference(PLAIN, tmp_path)
    tokens = [i * i % model.vocabulary for i in range(600)]
    whole = model.forward([Run(SequenceCache(), 0, tokens)])
    np.testing.assert_allclose(model.logits(tokens), whole, atol=1e-4)


def test_llama_is_an_architecture_and_base_is_not() -> None:
    assert "llama" in architectures()
    assert "base" not in architectures()
    with pytest.raises(UnsupportedModelError, match=r"'base' is not supported; supported: .*llama"):
        build({"general.architecture": "base"})
    with pytest.raises(ModelFileError, match=r"general\.architecture must be a string, got None"):
        build({})


def test_hyperparameters_have_their_defaults() -> None:
    metadata = PLAIN.metadata()
    for key in ("llama.attention.head_count_kv", "llama.attention.key_length", "llama.vocab_size"):
        del metadata[key]
    del metadata["llama.rope.dimension_count"]
    model = build(metadata | {"tokenizer.ggml.tokens": ["a"] * 9})
    assert model.shape.kv_heads == PLAIN.heads
    assert model.shape.head_dim == PLAIN.width // PLAIN.heads
    assert model.shape.vocabulary == 9
    assert model.rope.dim == model.shape.head_dim


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", None),
        ("llama.block_count", 0),
        ("llama.embedding_length", "wide"),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.layer_norm_rms_epsilon", -1e-5),
        ("llama.context_length", True),
    ],
)
def test_a_senseless_hyperparameter_is_named(key: str, value: object) -> None:
    metadata = PLAIN.metadata() | {key: value}
    if value is None:
        del metadata[key]
    with pytest.raises(ModelFileError) as caught:
        build(metadata)
    assert caught.value.field == key


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with (
        GGUFFile.open(write_gguf(tmp_path / "empty.gguf", PLAIN.metadata())) as file,
        pytest.raises(ModelFileError, match=r"'token_embd\.weight' is missing"),
    ):
        ReferenceModel(file)
