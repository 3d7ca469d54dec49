"""Falcon-H1: defaults of config.json, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.state import Fixed, Pages
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.base import TOKENS
from models.tiny.falcon_h1 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.errors import HeddleError

MODEL = MODELS[0]


def test_absent_factors_are_one_and_the_width_follows_from_another(tmp_path: Path) -> None:
    plain = replace(MODELS[2], mamba_head_dim=16)
    changes: dict[str, object] = {"mamba_d_ssm": None, "mamba_expand": 2, "head_dim": None}
    logits = []
    for folder, changed in (("given", {}), ("derived", changes)):
        with HuggingFaceCheckpoint.open(plain.write_folder(tmp_path / folder, **changed)) as file:
            logits.append(ReferenceModel(file).logits(TOKENS))
    assert np.array_equal(*logits)


def test_a_layer_keeps_keys_and_values_and_a_state(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(MODEL.write_folder(tmp_path)) as checkpoint:
        kinds = build(checkpoint).state(1)
    assert list(map(type, kinds)) == [Pages, Fixed]


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"mamba_norm_before_gate": True}, UnsupportedModelError, "mamba_norm_before_gate True"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias True is not .* of 1.25"),
        ({"mamba_proj_bias": True}, UnsupportedModelError, "mamba_proj_bias True is not .* of 1.5"),
        ({"time_step_limit": [0.0, 0.1]}, UnsupportedModelError, r"time_step_limit \[0.0, 0.1\]"),
        ({"hidden_act": "relu2"}, UnsupportedModelError, "hidden_act 'relu2' is not supported"),
        ({"key_multiplier": 0}, ModelFileError, "key_multiplier must be a positive number, got 0"),
        ({"ssm_multipliers": [1.0]}, ModelFileError, "ssm_multipliers must be a list of 5 numbers"),
        ({"mamba_n_heads": 5}, ModelFileError, "mamba_n_groups is 2, which does not divide the 5"),
    ],
)
def test_wrong_hyperparameters_are_refused(
    changes: dict[str, object], error: type[HeddleError], problem: str, tmp_path: Path
) -> None:
    folder = MODEL.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        build(checkpoint)
