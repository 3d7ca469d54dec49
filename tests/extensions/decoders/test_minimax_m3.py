"""MiniMax M3's config.json as it is published, and the end of its dense context."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle.errors import UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.base import TOKENS
from models.tiny.minimax_m3 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

MODEL = MODELS[0]
NARROW = replace(MODEL, top_blocks=1)
PUBLISHED = {
    "sparse_attention_config": {"sparse_topk_blocks": 1, "sparse_block_size": 16},
    "moe_layer_freq": [0, 1, 1],
    "rotary_dim": 16,
    "hidden_act": "swigluoai",
    "rope_theta": 10_000.0,
}


def test_the_keys_of_the_published_folder_mean_the_same(tmp_path: Path) -> None:
    folder = MODEL.write_folder(tmp_path, **PUBLISHED, **dict.fromkeys(OTHERS))
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert build(checkpoint).shape.context == 16
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, MODEL.expected_logits(), rtol=0, atol=4e-5)


OTHERS = ("index_topk_blocks", "index_block_size", "mlp_layer_types", "rope_parameters")


def test_the_context_ends_where_a_block_may_be_left_out(tmp_path: Path) -> None:
    checkpoint = NARROW.checkpoint(tmp_path)
    assert build(checkpoint).shape.context == 16
    with HuggingFaceCheckpoint.open(NARROW.write_folder(tmp_path / "folder")) as folder:
        assert build(folder, 16).shape.context == 16
        with pytest.raises(UnsupportedModelError, match="context 17 is not supported"):
            build(folder, 17)


def test_another_constant_of_the_activation_is_refused(tmp_path: Path) -> None:
    folder = MODEL.write_folder(tmp_path, swiglu_limit=6.0)
    with (
        HuggingFaceCheckpoint.open(folder) as checkpoint,
        pytest.raises(UnsupportedModelError, match="swiglu_limit 6 is not supported"),
    ):
        build(checkpoint)
