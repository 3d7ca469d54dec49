"""The values that gemma3.py reads from a checkpoint; test_logits.py compares its logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from heddle.errors import ModelFileError
from heddle.models.build import build
from heddle.models.families import gemma3
from heddle.weights.hyperparameters import Hyperparameters
from models.attentions import attentions
from models.tiny.base import BASE
from models.tiny.gemma3 import MODELS

if TYPE_CHECKING:
    from pathlib import Path


SIX_TO_ONE = MODELS[0]


def test_every_sixth_layer_attends_to_the_whole_context(tmp_path: Path) -> None:
    model = build(replace(SIX_TO_ONE, layers=13).checkpoint(tmp_path))
    assert [one.spec.window for one in attentions(model)] == [4, 4, 4, 4, 4, 0] * 2 + [4]
    bases = ([BASE] * 5 + [SIX_TO_ONE.base]) * 2 + [BASE]
    assert [one.rope.base for one in attentions(model)] == bases


def test_keys_override_the_period_and_the_base_of_local_layers(tmp_path: Path) -> None:
    keys = {"gemma3.attention.sliding_window_pattern": 3, "gemma3.rope.freq_base_swa": 500.0}
    model = build(SIX_TO_ONE.checkpoint(tmp_path, keys))
    assert [one.spec.window for one in attentions(model)] == [4, 4, 0, 4, 4, 0, 4]
    assert {one.rope.base for one in attentions(model)} == {500.0, SIX_TO_ONE.base}


def test_a_window_beyond_int32_becomes_the_largest_int32(tmp_path: Path) -> None:
    key = "gemma3.attention.sliding_window"
    for window, used in ((2**31 - 1, 2**31 - 1), (2**31, 2**31 - 1), (2**62, 2**31 - 1)):
        model = build(SIX_TO_ONE.checkpoint(tmp_path, {key: window}))
        assert {one.spec.window for one in attentions(model)} == {used, 0}


def test_scaling_stretches_global_layers_only(tmp_path: Path) -> None:
    scaling = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    local, *_, whole, _ = attentions(build(SIX_TO_ONE.checkpoint(tmp_path, scaling)))
    assert set(whole.rope.factors) == {8.0}
    assert set(local.rope.factors) <= {1.0}


@pytest.mark.parametrize(("layers", "divisor"), [(26, 16), (62, 5376 / 32)])
def test_the_27b_model_has_its_own_attention_scale(layers: int, divisor: float) -> None:
    values = {"layers": layers, "width": 5376, "mlp_width": 8, "heads": 32, "key_dim": 16}
    values |= {"context": 64, "vocabulary": 32, "window": 4}
    model = gemma3.build(Hyperparameters(values | {"norm_eps": 1e-6, "rope.base": 1e6}), 0)
    assert {one.spec.scale for one in attentions(model)} == {1 / math.sqrt(divisor)}


@pytest.mark.parametrize("key", ["attention.sliding_window", "rope.freq_base"])
def test_keys_without_a_safe_default_are_required(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"{key} must be a positive .*number, got None"):
        build(SIX_TO_ONE.checkpoint(tmp_path, {f"gemma3.{key}": None}))


def test_caps_are_read(tmp_path: Path) -> None:
    keys = {"gemma3.final_logit_softcapping": 30.0, "gemma3.attn_logit_softcapping": 7.0}
    capped, plain = (
        build(SIX_TO_ONE.checkpoint(tmp_path, keys)),
        build(SIX_TO_ONE.checkpoint(tmp_path)),
    )
    assert (capped.logit_cap, attentions(capped)[0].spec.soft_cap) == (30.0, 7.0)
    assert (plain.logit_cap, attentions(plain)[0].spec.soft_cap) == (0.0, 0.0)
