"""A count in a model's files is checked against its tensors before anything is made of its size."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gguf_writer import write_gguf
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.models.build import build
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.huggingface.tokenizer import read_tokenizer
from heddle.weights.huggingface.values import by_kind, numbers_in, scaled
from heddle.weights.hyperparameters import Bounds, Hyperparameters
from models.tiny import FAMILIES
from models.tiny.gemma4 import MODELS as GEMMA4
from models.tiny.glm4_moe import MODELS as GLM4_MOE
from models.tiny.llama import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel

MANY = 600_000
"""A list by layer of so many entries would take 4.8 MB."""
SMALL = 4 << 20


@pytest.mark.parametrize("model", [models[0] for models in FAMILIES.values()], ids=str)
def test_a_number_of_layers_makes_no_list_before_it_is_checked(
    model: TinyModel, tmp_path: Path
) -> None:
    changes = {"num_hidden_layers": MANY, "sliding_window": 4, "layer_types": None}
    folder = model.write_folder(tmp_path / "folder", **changes)
    with pytest.raises(ModelFileError):
        HuggingFaceCheckpoint.open(folder)  # imports modules, which take memory
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=f"num_hidden_layers is {MANY}, but the tensors"):
            HuggingFaceCheckpoint.open(folder)
        if model.gguf_names:
            key = f"{model.gguf_architecture or model.architecture}.block_count"
            with pytest.raises(ModelFileError, match=rf"{key} is \d{{6,7}}, but the tensors"):
                model.checkpoint(tmp_path, {key: MANY})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SMALL


@pytest.mark.parametrize(
    ("model", "changes", "problem"),
    [
        (PLAIN, {"vocab_size": MANY}, "vocab_size is 600000"),
        (PLAIN, {"hidden_size": MANY}, "hidden_size is 600000"),
        (PLAIN, {"head_dim": MANY}, "head_dim is 600000"),
        (PLAIN, {"num_attention_heads": -MANY}, "num_attention_heads is -600000"),
        (PLAIN, {"partial_rotary_factor": 60_000.0}, "rope.dim is 960000"),
        (GEMMA4[0], {"num_kv_shared_layers": MANY}, "num_kv_shared_layers is 600000"),
        (GEMMA4[0], {"global_head_dim": MANY}, "head_dim is 600000"),
    ],
)
def test_a_size_in_a_folder_is_bounded(
    model: TinyModel, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    folder = model.write_folder(tmp_path, **changes)
    with pytest.raises(ModelFileError, match=f"{problem}, but the tensors of the file allow at"):
        HuggingFaceCheckpoint.open(folder)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (PLAIN, "llama.vocab_size", MANY),
        (PLAIN, "llama.attention.head_count_kv", np.array([2, MANY])),
        (PLAIN, "llama.rope.dimension_count", MANY),
        (GLM4_MOE[0], "glm4moe.nextn_predict_layers", -MANY),
    ],
)
def test_a_size_in_a_gguf_file_is_bounded(
    model: TinyModel, key: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match="but the tensors of the file allow at most") as error:
        model.checkpoint(tmp_path, {key: value})
    assert error.value.field in (key, "glm4moe.block_count")


def test_a_count_may_equal_its_bound() -> None:
    bounds = Bounds.of([(3, 8), (), (5,)])
    assert bounds == Bounds(tensors=3, longest=8)
    Hyperparameters({"layers": 3, "width": 8, "kv_heads": [8, 1], "context": 10**9}, bounds=bounds)
    for name, value in (("layers", 4), ("width", 9), ("kv_heads", [1, 9])):
        with pytest.raises(ModelFileError, match=rf"{name} is \d, .* at most [38];"):
            Hyperparameters({name: value}, bounds=bounds)


def test_ids_without_tokens_are_bounded(tmp_path: Path) -> None:
    folder = PLAIN.write_folder(tmp_path)
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    pipeline["added_tokens"][0]["id"] = (1 << 24) - 1
    (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    with pytest.raises(ModelFileError, match="has token ids up to 16777215, and 32 tokens"):
        read_tokenizer(folder, {})


@pytest.mark.parametrize(
    ("key", "value"),
    [("llama.block_count", np.array([1, 1])), ("llama.attention.scale", np.array([], np.float32))],
)
def test_a_list_in_place_of_a_number_is_refused(key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=key):
        build(PLAIN.checkpoint(tmp_path, {key: value}))


def test_hyperparameters_without_a_finite_result_are_refused(tmp_path: Path) -> None:
    rope: dict[str, object] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1}
    rope["original_max_position_embeddings"] = 8
    folder = PLAIN.write_folder(tmp_path, rope_parameters=rope)
    with (
        HuggingFaceCheckpoint.open(folder) as checkpoint,
        pytest.raises(ModelFileError, match="the hyperparameters contradict each other"),
    ):
        build(checkpoint)


def test_a_kind_of_layer_that_is_no_text_is_refused() -> None:
    assert by_kind("k", ["a", "b"], {"a": True, "b": False}) == [True, False]
    with pytest.raises(UnsupportedModelError, match=r"k \[\] is not supported; supported: a"):
        by_kind("k", ["a", []], {"a": True})


def test_only_whole_numbers_are_looked_for() -> None:
    assert numbers_in([1, "1", [], 3, None]) == {1, 3}


@pytest.mark.parametrize("factor", [-0.5, math.inf, -math.inf, math.nan, 1e300])
def test_a_size_times_a_wild_factor_is_refused(factor: float) -> None:
    assert scaled("k", 0.5, 65) == 32
    with pytest.raises(ModelFileError, match="k must be a factor"):
        scaled("k", factor, 64)


def test_a_gguf_file_of_a_vocabulary_has_layers_within_bounds(tmp_path: Path) -> None:
    with GGUFCheckpoint.open(write_gguf(tmp_path / "x.gguf", PLAIN.metadata())) as checkpoint:
        assert checkpoint.hyperparameters.get("layers") == 2
    many = PLAIN.metadata() | {"llama.block_count": 10**9}
    with pytest.raises(ModelFileError, match=r"block_count is 1000000000, .* at most 65536"):
        GGUFCheckpoint.open(write_gguf(tmp_path / "y.gguf", many))
