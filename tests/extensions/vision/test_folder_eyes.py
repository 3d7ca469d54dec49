"""Eyes of Hugging Face folders under canonical names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_eyes import IDEFICS3, MODELS

from heddle.extensions.vision.files import eyes_of
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import dequantize

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

    from heddle.extensions.vision.eyes import EyesCheckpoint


def tensor(eyes: EyesCheckpoint, name: str) -> np.ndarray:
    info = eyes.tensors[name]
    return dequantize(eyes.read(name), info.type, info.shape)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_each_tensor_of_the_eyes_has_a_canonical_name(tmp_path: Path, model: TinyEyes) -> None:
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        assert eyes.architecture == model.name
        labels = {label for name in eyes.tensors for label in eyes.sources(name)}
        assert labels == model.used()
        for name, info in eyes.tensors.items():
            assert len(eyes.read(name)) == info.nbytes, name


def test_values_are_those_of_the_files(tmp_path: Path) -> None:
    state = IDEFICS3.eyes_state()
    with HuggingFaceCheckpoint.open(IDEFICS3.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        patches = state["model.vision_model.embeddings.patch_embedding.weight"]
        np.testing.assert_array_equal(tensor(eyes, "patches.weight"), patches.reshape(24, 48))
        for canonical, stored in {
            "layers.1.attention.output.bias": "encoder.layers.1.self_attn.out_proj.bias",
            "layers.0.mlp_norm.bias.weight": "encoder.layers.0.layer_norm2.bias",
            "output_norm.weight": "post_layernorm.weight",
        }.items():
            found = tensor(eyes, canonical)
            np.testing.assert_array_equal(found, state[f"model.vision_model.{stored}"])
        read = eyes.hyperparameters
        names = ("layers", "width", "mlp_width", "heads", "patch", "image_size", "merge")
        assert [read.integer(name) for name in names] == [2, 24, 36, 2, 4, 16, 2]
        assert read.integer("text_width") == 32
        assert read.number("norm_eps") == 1e-6
        assert read.get("activation") == "gelu"
        eyes.check_unchanged()
