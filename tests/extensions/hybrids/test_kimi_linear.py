"""Kimi Linear: what is refused, and that neither kind of its layers rotates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.base import TOKENS
from models.tiny.kimi_linear import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.errors import HeddleError

MOONSHOT, TRANSFORMERS = MODELS


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"mla_use_nope": False}, UnsupportedModelError, "mla_use_nope False is not supported"),
        ({"moe_layer_freq": 2}, UnsupportedModelError, "moe_layer_freq 2 is not supported"),
        (
            {"moe_router_activation_func": "softmax"},
            UnsupportedModelError,
            "moe_router_activation_func 'softmax' is not supported; supported: sigmoid",
        ),
        (
            {"use_grouped_topk": False, "num_expert_group": 2},
            UnsupportedModelError,
            "use_grouped_topk False is not supported",
        ),
        ({"linear_attn_config": [4]}, ModelFileError, "linear_attn_config must be an object"),
        ({"linear_attn_config": {}}, ModelFileError, r"linear_attn_config\.head_dim must be a"),
        (
            {"linear_attn_config": {"head_dim": 6}},
            ModelFileError,
            r"linear_attn_config\.head_dim is 6; it must be a multiple of 4",
        ),
    ],
)
def test_values_are_refused_by_name(
    changes: dict[str, object], error: type[HeddleError], problem: str, tmp_path: Path
) -> None:
    folder = MOONSHOT.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        build(checkpoint)


def test_the_base_of_rope_is_without_effect(tmp_path: Path) -> None:
    """Moonshot's config.json has it."""
    folder = TRANSFORMERS.write_folder(tmp_path, rope_theta=7.0, rope_scaling=None)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, TRANSFORMERS.expected_logits(), rtol=0, atol=4e-5)
