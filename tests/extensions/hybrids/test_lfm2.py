"""LFM2: forms of config.json, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.base import TOKENS
from models.tiny.lfm2 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.errors import HeddleError

MODEL = MODELS[0]
OLDER: dict[str, object] = {
    "layer_types": None,
    "full_attn_idxs": list(MODEL.attention),
    "intermediate_size": 7,
    "block_ff_dim": MODEL.stated_width,
}


def test_older_files_list_the_layers_with_attention(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(MODEL.write_folder(tmp_path / "tiny", **OLDER)) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    assert np.allclose(logits, MODEL.expected_logits(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("block_multiple_of", 0, ModelFileError),
        ("block_ffn_dim_multiplier", "1", ModelFileError),
        ("conv_L_cache", 1, ModelFileError),
        ("layer_types", ["conv", "conv_2d"], UnsupportedModelError),
    ],
)
def test_values_are_refused_by_name(
    key: str, value: object, error: type[HeddleError], tmp_path: Path
) -> None:
    folder = MODEL.write_folder(tmp_path / "tiny", **{key: value})
    with pytest.raises(error, match=key), HuggingFaceCheckpoint.open(folder) as checkpoint:
        build(checkpoint)
