"""Nemotron NAS: sizes by layer that are wrong are refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from heddle.errors import HeddleError, ModelFileError
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.state_sizes import kv_bytes_per_token
from models.tiny.nemotron_nas import MODELS

if TYPE_CHECKING:
    from pathlib import Path

MODEL = MODELS[0]
BLOCKS: Any = MODEL.config()["block_configs"]


def with_first(part: str, **changes: object) -> list[object]:
    """The blocks, the first with another attention or feed-forward part."""
    return [BLOCKS[0] | {part: BLOCKS[0][part] | changes}, *BLOCKS[1:]]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"block_configs": None}, "block_configs must be a list"),
        ({"block_configs": []}, r"must have 5 whole numbers, zero or more, got \[\]"),
        ({"block_configs": [3] * 5}, "an entry of block_configs has no object attention"),
        ({"block_configs": [{"attention": {"no_op": True}}] * 5}, "has no object ffn"),
        ({"block_configs": with_first("attention", n_heads_in_group=3)}, "must divide the 4 query"),
        ({"block_configs": with_first("attention", n_heads_in_group=0)}, "must divide the 4 query"),
        ({"block_configs": with_first("attention", n_heads_in_group="2")}, "got '2'"),
        (
            {"block_configs": with_first("attention", replace_with_linear=True)},
            r"block_configs\.attention\.replace_with_linear True is not supported",
        ),
        ({"block_configs": with_first("ffn", sparsify=[1])}, r"ffn\.sparsify .* not supported"),
        ({"block_configs": with_first("ffn", ffn_mult="wide")}, "must be a number, got 'wide'"),
        ({"block_configs": with_first("ffn", ffn_mult=-1.0)}, "factor from 0 to 65536"),
        ({"block_configs": with_first("ffn", ffn_mult=float("nan"))}, "factor from 0 to 65536"),
        ({"block_configs": with_first("ffn", intermediate_size=99)}, r"shape \(256, 32\)"),
        ({"block_configs": BLOCKS[1:2] * 5}, "is 0 in each layer"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a positive whole number"),
        ({"hidden_size": "wide"}, "hidden_size must be a positive whole number, got 'wide'"),
    ],
)
def test_a_wrong_size_of_a_folder_is_named(
    changes: dict[str, object], problem: str, tmp_path: Path
) -> None:
    folder = MODEL.write_folder(tmp_path, **changes)
    with pytest.raises(HeddleError, match=problem), HuggingFaceCheckpoint.open(folder) as read:
        build(read).load(NamesOnly(read))  # type: ignore[arg-type]


class NamesOnly:
    """A loader that compares shapes."""

    def __init__(self, checkpoint: HuggingFaceCheckpoint) -> None:
        self.tensors = checkpoint.tensors

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def linear(self, name: str, rows: int, columns: int) -> None:
        found = self.tensors[f"{name}.weight"]
        if found.shape != (rows, columns):
            raise ModelFileError(f"{name} has shape {found.shape}", field=name)

    embedding = linear

    def vector(self, name: str, width: int) -> None:
        assert self.tensors[f"{name}.weight"].shape == (width,)


@pytest.mark.parametrize(
    ("key", "values", "problem"),
    [
        ("attention.head_count_kv", [0, 0, 2, 0, 1], "matrix in place of attention are not"),
        ("attention.head_count_kv", [3, 0, 2, 0, 1], "it must divide them"),
        ("attention.head_count_kv", [2, 0, 2], "must have 5 whole numbers"),
        ("attention.head_count", [0] * 5, "is 0 in each layer"),
        ("attention.head_count", [1 << 30] * 5, "the tensors of the file allow at most"),
        ("feed_forward_length", [256, 512, 0, 0, -1], "must have 5 whole numbers"),
    ],
)
def test_a_wrong_size_of_a_gguf_file_is_named(
    key: str, values: list[int], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=problem) as caught:
        build(MODEL.checkpoint(tmp_path, {f"deci.{key}": np.array(values, np.int32)}))
    assert caught.value.field == f"deci.{key}"


def test_layers_without_attention_keep_no_keys(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(MODEL.write_folder(tmp_path)) as checkpoint:
        kept = kv_bytes_per_token(checkpoint.hyperparameters)
        assert kept is not None
        # Of head_dim 16, two layers have 2 key/value heads and one has 1.
        assert kept["f16"] == (2 + 2 + 1) * 2 * 16 * 2
        states = [build(checkpoint).state(layer) for layer in range(5)]
    assert [len(state) for state in states] == [1, 0, 1, 0, 1]
