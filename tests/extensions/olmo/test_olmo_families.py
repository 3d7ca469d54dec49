"""Refusals of OLMoE and EXAONE 4, and the places of EXAONE 4's windows and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.errors import UnsupportedModelError
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.attentions import attentions
from models.tiny import exaone4, hunyuan, olmoe

if TYPE_CHECKING:
    from pathlib import Path


def test_limits_of_queries_keys_and_values_are_refused(tmp_path: Path) -> None:
    folder = olmoe.MODELS[0].write_folder(tmp_path, clip_qkv=8.0)
    with pytest.raises(UnsupportedModelError, match=r"clip_qkv 8\.0 is not supported"):
        build(HuggingFaceCheckpoint.open(folder))


def test_layers_without_a_window_have_no_positions(tmp_path: Path) -> None:
    model = build(HuggingFaceCheckpoint.open(exaone4.MODELS[0].write_folder(tmp_path)))
    found = [(one.spec.window, one.rope is not None) for one in attentions(model)]
    assert found == [(5, True), (5, True), (5, True), (0, False), (5, True)]


def test_all_layers_have_positions_where_none_has_a_window(tmp_path: Path) -> None:
    model = build(HuggingFaceCheckpoint.open(exaone4.MODELS[1].write_folder(tmp_path)))
    assert [one.rope is not None for one in attentions(model)] == [True, True]


def test_layers_of_hunyuan_that_differ_are_refused(tmp_path: Path) -> None:
    folder = hunyuan.MODELS[2].write_folder(tmp_path, moe_topk=[1, 2])
    with pytest.raises(UnsupportedModelError, match=r"moe_topk \[1, 2\] is not supported"):
        HuggingFaceCheckpoint.open(folder)
