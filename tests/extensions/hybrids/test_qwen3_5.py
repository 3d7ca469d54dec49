"""Qwen3.5: folders of models that see images, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from folder_writer import write_safetensors
from heddle.errors import HeddleError, ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny import qwen3_5, qwen3_5_moe
from models.tiny.base import TOKENS, TinyModel

if TYPE_CHECKING:
    from pathlib import Path

DENSE, EXPERTS = qwen3_5.MODELS[1], qwen3_5_moe.MODELS[0]


@pytest.mark.parametrize(("model", "kind"), [(DENSE, "qwen3_5"), (EXPERTS, "qwen3_5_moe")])
def test_the_text_part_of_a_model_that_sees_images(
    model: TinyModel, kind: str, tmp_path: Path
) -> None:
    folder = model.write_folder(tmp_path)
    config = {
        "model_type": kind,
        "tie_word_embeddings": model.tied,
        "text_config": model.config(),
        "vision_config": {},
    }
    (folder / "config.json").write_text(json.dumps(config))
    named = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in model.state().items()
    }
    others = {
        "model.visual.patch_embed.proj.weight": np.zeros((2, 2), np.float32),
        "mtp.fc.weight": np.zeros((2, 2), np.float32),
    }
    write_safetensors(folder / "model.safetensors", named | others)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"linear_num_key_heads": 4}, ModelFileError, "linear_num_key_heads is 4, which does not"),
        ({"linear_key_head_dim": 6}, ModelFileError, "linear_key_head_dim is 6; it must be a mult"),
        ({"linear_num_value_heads": None}, ModelFileError, "linear_num_value_heads"),
        ({"layer_types": ["conv2"] * 5}, UnsupportedModelError, "layer_types 'conv2' is not supp"),
        ({"layer_types": ["linear_attention"]}, ModelFileError, "layer_types must have 5 entries"),
    ],
)
def test_wrong_hyperparameters_are_refused(
    changes: dict[str, object], error: type[HeddleError], problem: str, tmp_path: Path
) -> None:
    folder = DENSE.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        build(checkpoint)
