"""The registry of architectures, and how hyperparameters are read; shared by all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_models import PLAIN

from gguf_writer import write_gguf
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.models import architectures, build
from heddle.testing.reference_model import ReferenceModel
from heddle.testing.reference_ops import ReferenceLoader
from heddle.weights.gguf import GGUFFile

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_architectures_and_base_is_not() -> None:
    assert architectures() == ["gemma3", "llama", "qwen2"]
    with pytest.raises(UnsupportedModelError, match=r"'base' is not supported; supported: .*llama"):
        build({"general.architecture": "base"})
    with pytest.raises(ModelFileError, match=r"general\.architecture must be a string, got None"):
        build({})


def test_hyperparameters_have_their_defaults() -> None:
    metadata = PLAIN.metadata()
    for key in ("attention.head_count_kv", "attention.key_length", "attention.value_length"):
        del metadata[f"llama.{key}"]
    for key in ("rope.dimension_count", "rope.freq_base", "vocab_size"):
        del metadata[f"llama.{key}"]
    model = build(metadata | {"tokenizer.ggml.tokens": ["a"] * 9})
    assert model.shape.kv_heads == PLAIN.heads
    assert model.shape.head_dim == PLAIN.width // PLAIN.heads
    assert model.shape.vocabulary == 9
    assert model.rope.dim == model.shape.head_dim
    assert model.rope.base == 10_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", None),
        ("llama.block_count", 0),
        ("llama.embedding_length", "wide"),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.layer_norm_rms_epsilon", -1e-5),
        ("llama.context_length", True),
        ("llama.attention.head_count", 0.5),
        ("llama.attention.head_count", [4, 4]),
        ("llama.rope.scaling.factor", -2.0),
    ],
)
def test_a_senseless_hyperparameter_is_named(key: str, value: object) -> None:
    metadata = PLAIN.metadata() | {key: value}
    if value is None:
        del metadata[key]
    with pytest.raises(ModelFileError) as caught:
        build(metadata)
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.scaling.type", np.array([1, 2])),
        ("llama.attention.value_length", 8),
    ],
)
def test_what_would_compute_something_else_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        build(PLAIN.metadata() | {key: value})
    assert caught.value.param == key


def test_linear_scaling_divides_positions() -> None:
    scaling = {"llama.rope.scaling.factor": 4.0}
    assert set(build(PLAIN.metadata() | scaling).rope.factors) == {4.0}
    none = scaling | {"llama.rope.scaling.type": "none"}
    assert set(build(PLAIN.metadata() | none).rope.factors) == {1.0}


def test_divisors_in_the_file_come_on_top_of_scaling(tmp_path: Path) -> None:
    divisors = [1.0, 1, 1, 2, 2, 2, 8, 8]
    model = build(PLAIN.metadata() | {"llama.rope.scaling.factor": 4.0})
    with GGUFFile.open(PLAIN.write_scaled(tmp_path / "tiny.gguf", divisors)) as file:
        assert model.load(ReferenceLoader(file)).rope.factors == (4, 4, 4, 8, 8, 8, 32, 32)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with (
        GGUFFile.open(write_gguf(tmp_path / "empty.gguf", PLAIN.metadata())) as file,
        pytest.raises(ModelFileError, match=r"'token_embd\.weight' is missing"),
    ):
        ReferenceModel(file)
