"""Devices of torch refuse, at load, a model with an operation that only the processor computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.config import EngineConfig
from heddle.errors import UnsupportedModelError
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.deepseek_v4 import FOLDERS

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
from heddle.extensions.torch.load import load


def test_a_model_with_other_operations_is_refused_at_load(tmp_path: Path) -> None:
    with (
        HuggingFaceCheckpoint.open(FOLDERS[0].write_folder(tmp_path)) as checkpoint,
        pytest.raises(UnsupportedModelError, match=r"do not compute StreamWeights.*--device cpu"),
    ):
        load(checkpoint, EngineConfig(device="torch", context=32))
