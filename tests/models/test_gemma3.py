"""What gemma3.py reads of a file; its logits are compared in test_logits.py."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from tiny_models import BASE, GEMMA3, TinyGemma3

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.models import build

if TYPE_CHECKING:
    from heddle.models.gemma3 import Gemma3, LayerKind

SIX_TO_ONE = GEMMA3[0]


def kinds(model: Gemma3) -> list[LayerKind]:
    return [model.kind(index) for index in range(model.shape.layers)]


def test_every_sixth_layer_sees_the_whole_context() -> None:
    model = build(SIX_TO_ONE.metadata() | {"gemma3.block_count": 13})
    assert [kind.attention.window for kind in kinds(model)] == [4, 4, 4, 4, 4, 0] * 2 + [4]
    assert [kind.rope.base for kind in kinds(model)] == ([BASE] * 5 + [SIX_TO_ONE.base]) * 2 + [
        BASE
    ]


def test_keys_override_the_period_and_the_base_of_local_layers() -> None:
    keys = {"gemma3.attention.sliding_window_pattern": 3, "gemma3.rope.freq_base_swa": 500.0}
    model = build(SIX_TO_ONE.metadata() | keys)
    assert [kind.attention.window for kind in kinds(model)] == [4, 4, 0, 4, 4, 0, 4]
    assert {kind.rope.base for kind in kinds(model)} == {500.0, SIX_TO_ONE.base}


def test_a_number_of_layers_that_is_claimed_takes_no_memory() -> None:
    model = build(SIX_TO_ONE.metadata() | {"gemma3.block_count": 2**62})
    assert model.kind(2**61).attention.window == 4


def test_scaling_stretches_global_layers_only() -> None:
    scaling = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    local, *_, whole, _ = kinds(build(SIX_TO_ONE.metadata() | scaling))
    assert set(whole.rope.factors) == {8.0}
    assert set(local.rope.factors) <= {1.0}


@pytest.mark.parametrize(("layers", "divisor"), [(26, 16), (62, 5376 / 32)])
def test_the_27b_model_has_a_scale_of_its_own(layers: int, divisor: float) -> None:
    model = build(TinyGemma3("", 32, 16, head_dim=16, layers=layers, width=5376).metadata())
    assert {kind.attention.scale for kind in kinds(model)} == {1 / math.sqrt(divisor)}


@pytest.mark.parametrize("key", ["attention.sliding_window", "rope.freq_base"])
def test_keys_without_a_safe_default_are_asked_for(key: str) -> None:
    metadata = SIX_TO_ONE.metadata()
    del metadata[f"gemma3.{key}"]
    with pytest.raises(ModelFileError, match=f"{key} must be a positive .*number, got None"):
        build(metadata)


def test_capped_logits_are_refused() -> None:
    key = "gemma3.final_logit_softcapping"
    with pytest.raises(UnsupportedModelError, match=rf"{key} 30\.0 is not supported"):
        build(SIX_TO_ONE.metadata() | {key: 30.0})
    build(SIX_TO_ONE.metadata() | {key: 0.0})
