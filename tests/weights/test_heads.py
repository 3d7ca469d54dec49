"""Keys and values of heads that a file stores as one matrix: each part has the right numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor, write_gguf
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.quantise.export import exported_name
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny.deepseek_v2 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.weights.checkpoint import Checkpoint

MODEL = replace(MODELS[0], layers=1, dense=1, rank=64, value_dim=24)
KEYS, VALUES = "layers.0.attention.head_keys.weight", "layers.0.attention.head_values.weight"
FUSED = "blk.0.attn_kv_b.weight"
HEADS, KEY, RANK = MODEL.heads, MODEL.key_dim, MODEL.rank


def numbers(checkpoint: Checkpoint, name: str) -> np.ndarray:
    tensor = checkpoint.tensors[name]
    return dequantize(checkpoint.read(name), tensor.type, tensor.shape)


def matrix() -> np.ndarray:
    """The matrix, (heads, keys and values, rank)."""
    stored = MODEL.state()["model.layers.0.self_attn.kv_b_proj.weight"]
    return stored.reshape(HEADS, -1, RANK)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_parts_of_a_folder_have_its_type(tmp_path: Path, dtype: str) -> None:
    with HuggingFaceCheckpoint.open(MODEL.write_folder(tmp_path, dtype)) as checkpoint:
        keys, values = numbers(checkpoint, KEYS), numbers(checkpoint, VALUES)
        assert checkpoint.tensors[KEYS].type.name == dtype
        assert checkpoint.tensors[VALUES].has_place, "read from where they lie"
    tolerance = {"F32": 0, "BF16": 2**-7, "F16": 2**-10}[dtype]
    np.testing.assert_allclose(keys, matrix()[:, :KEY].swapaxes(1, 2), rtol=tolerance, atol=1e-6)
    np.testing.assert_allclose(values, matrix()[:, KEY:], rtol=tolerance, atol=1e-6)


def test_transposed_keys_of_a_quantised_matrix_are_floats(tmp_path: Path) -> None:
    rows = HEADS * (KEY + MODEL.value_dim)
    stored = Tensor.random(FUSED, TensorType.Q8_0, (rows, RANK), 3)
    kept = [tensor for tensor in MODEL.tensors() if tensor.name != FUSED]
    raw = np.frombuffer(stored.data, np.uint8)
    expected = dequantize(raw, TensorType.Q8_0, (rows, RANK)).reshape(HEADS, -1, RANK)
    path = write_gguf(tmp_path / "old.gguf", MODEL.metadata(), [*kept, stored])
    with GGUFCheckpoint.open(path) as checkpoint:
        keys, values = numbers(checkpoint, KEYS), numbers(checkpoint, VALUES)
        types = [checkpoint.tensors[name].type for name in (KEYS, VALUES)]
    assert types == [TensorType.F32, TensorType.Q8_0]
    assert np.array_equal(keys, expected[:, :KEY].swapaxes(1, 2), equal_nan=True)
    assert np.array_equal(values, expected[:, KEY:], equal_nan=True)


def test_parts_that_a_file_has_too_are_taken(tmp_path: Path) -> None:
    own = np.full((HEADS, RANK, KEY), 0.5, np.float32)
    with MODEL.checkpoint(tmp_path, extra=[Tensor.of("blk.0.attn_k_b.weight", own)]) as checkpoint:
        assert np.array_equal(numbers(checkpoint, KEYS), own)
        assert np.array_equal(numbers(checkpoint, VALUES), matrix()[:, KEY:])


def test_wrong_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"attn_kv_b\.weight has shape \(144, 64\).*\(180, 64\)"
    ):
        MODEL.checkpoint(tmp_path, {"deepseek2.attention.head_count": HEADS + 1})


def test_heads_without_rows_for_keys_are_refused(tmp_path: Path) -> None:
    rotated = MODEL.metadata()["deepseek2.rope.dimension_count"]
    changes = {"key_length_mla": rotated, "value_length_mla": KEY + MODEL.value_dim}
    with pytest.raises(ModelFileError, match=r"attn_kv_b\.weight has .*: 0 rows for keys"):
        MODEL.checkpoint(tmp_path, {f"deepseek2.attention.{key}": n for key, n in changes.items()})


def test_a_file_with_one_matrix_is_not_written_anew(tmp_path: Path) -> None:
    with (
        MODEL.checkpoint(tmp_path) as checkpoint,
        pytest.raises(UnsupportedModelError, match=r"attn_kv_b\.weight.* as one matrix"),
    ):
        exported_name(checkpoint, KEYS)
