"""Tensors that a format stores as one: each part is the right rows of it, whatever its type."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gguf_writer import Tensor, write_gguf
from heddle.errors import ModelFileError
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny.phi3 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

PHI3 = replace(MODELS[0], width=64, ffn_width=96, layers=1)


def test_parts_of_a_quantised_tensor_are_its_rows(tmp_path: Path) -> None:
    rows = {"q": PHI3.q_width, "k": PHI3.kv_width, "v": PHI3.kv_width}
    stored = Tensor.random("blk.0.attn_qkv.weight", TensorType.Q4_K, (sum(rows.values()), 256), 1)
    extra = Tensor.random("blk.0.ffn_up.weight", TensorType.Q8_0, (2 * PHI3.ffn_width, 64), 2)
    kept = [t for t in PHI3.tensors() if t.name not in (stored.name, extra.name)]
    path = write_gguf(tmp_path / "a.gguf", PHI3.metadata(), [*kept, stored, extra])
    with GGUFCheckpoint.open(path) as checkpoint:
        found = [checkpoint.read(f"layers.0.attention.{part}.weight") for part in rows]
        halves = [checkpoint.read(f"layers.0.mlp.{part}.weight") for part in ("gate", "up")]
        tensors = checkpoint.tensors
    assert b"".join(part.tobytes() for part in found) == stored.data
    assert b"".join(part.tobytes() for part in halves) == extra.data
    for part, count in rows.items():
        tensor = tensors[f"layers.0.attention.{part}.weight"]
        assert (tensor.shape, tensor.label) == ((count, 256), stored.name)
    places = [tensors[f"layers.0.attention.{part}.weight"].place for part in rows]
    offsets = np.diff([place.offset for place in places])
    assert offsets.tolist() == [rows["q"] * 144, rows["k"] * 144]


def test_wrong_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_qkv\.weight has 80 rows.* require 240"):
        PHI3.checkpoint(tmp_path, {"phi3.attention.head_count_kv": PHI3.heads * 2})
    folder = PHI3.write_folder(tmp_path / "folder", intermediate_size=95)
    with pytest.raises(ModelFileError, match=r"gate_up_proj\.weight has 192 rows.* require 190"):
        HuggingFaceCheckpoint.open(folder)
