"""Mamba-2 alone: memory of a sequence, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.mamba2 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.errors import HeddleError

MODEL = MODELS[0]


def test_a_sequence_takes_the_same_memory_at_any_length(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(MODEL.write_folder(tmp_path)) as checkpoint:
        executor = load(checkpoint, EngineConfig(slots=2, threads=1, context=100_000))
        memory = executor.memory
    assert memory.token_page_bytes == 0 < memory.snapshot_bytes
    executor.close()


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"time_step_limit": [0.01, 0.1]}, UnsupportedModelError, r"limit \[0.01, 0.1\] is not"),
        ({"hidden_act": "gelu_pytorch_tanh"}, UnsupportedModelError, "hidden_act 'gelu_pytorch"),
        ({"n_groups": 3}, ModelFileError, "n_groups is 3, which does not divide the 4 heads"),
        ({"state_size": 6}, ModelFileError, "state_size is 6; it must be a multiple of 4"),
        ({"num_heads": None}, ModelFileError, "num_heads must be a positive whole number"),
    ],
)
def test_wrong_hyperparameters_are_refused(
    changes: dict[str, object], error: type[HeddleError], problem: str, tmp_path: Path
) -> None:
    folder = MODEL.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        build(checkpoint)
