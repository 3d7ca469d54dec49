"""Llama 4: its chunks, its layers, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.models.blocks import QueryKeyNorm
from heddle.models.build import build
from heddle.models.experts import MixtureOfExperts
from heddle.models.ops import Temperature
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.attentions import attentions
from models.tiny.llama4 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder

SCOUT, MAVERICK = MODELS
LONG = replace(SCOUT, context=20_000)


def built(folder: Path) -> Decoder:
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        return build(checkpoint)


@pytest.mark.parametrize(
    ("changes", "chunk", "growth"),
    [
        ({}, 8192, Temperature(0.1, 8192, 1)),
        ({"attn_temperature_tuning": False}, 8192, None),
        ({"attention_chunk_size": 64}, 64, Temperature(0.1, 8192, 1)),
        ({"attention_chunk_size": 20_000}, 0, Temperature(0.1, 8192, 1)),
        ({"floor_scale": 50, "attn_scale": 0.2}, 8192, Temperature(0.2, 50, 1)),
        ({"attention_chunk_size": None, "attn_temperature_tuning": False}, 0, None),
    ],
)
def test_rotated_layers_have_chunks_and_the_others_grow(
    changes: dict[str, object], chunk: int, growth: Temperature | None, tmp_path: Path
) -> None:
    model = built(LONG.write_folder(tmp_path, **changes))
    assert model.shape.context == 20_000
    for one in attentions(model):
        rotated = one.rope is not None
        assert one.spec.window == (chunk if rotated else 0)
        assert one.spec.aligned is (rotated and chunk > 0)
        assert one.temperature == (None if rotated else growth)


def test_a_gguf_file_has_the_chunks_of_the_published_models(tmp_path: Path) -> None:
    model = build(LONG.checkpoint(tmp_path))
    assert [one.spec.window for one in attentions(model)] == [8192, 8192, 8192, 0, 8192]
    assert attentions(model)[3].temperature == Temperature(0.1, 8192, 1)
    whole = attentions(build(LONG.checkpoint(tmp_path, {"llama4.attention.sliding_window": 0})))
    assert all(one.rope is not None for one in whole)
    assert all(one.spec.window == 0 and one.temperature is None for one in whole)


@pytest.mark.parametrize("name", ["attention_chunk_size", "floor_scale", "attn_scale"])
@pytest.mark.parametrize("value", [0, -8, "many", 2.5e300])
def test_chunks_and_growth_that_make_no_sense_are_refused(
    name: str, value: object, tmp_path: Path
) -> None:
    folder = LONG.write_folder(tmp_path, **{name: value})
    if (name, value) == ("attn_scale", 0):
        assert attentions(built(folder))[3].temperature is None
        return
    with pytest.raises(ModelFileError, match=name):
        built(folder)


@pytest.mark.parametrize("changes", [{}, {"no_rope_layers": [1, 1, 1, 0, 1]}])
def test_rotated_layers_have_norms(changes: dict[str, object], tmp_path: Path) -> None:
    found = attentions(built(SCOUT.write_folder(tmp_path, **changes)))
    assert [one.rope is not None for one in found] == [True, True, True, False, True]
    assert [one.norm is QueryKeyNorm.PLAIN for one in found] == [True, True, True, False, True]


@pytest.mark.parametrize("changes", [{}, {"moe_layers": [1, 3], "interleave_moe_layer_step": 1}])
def test_some_layers_have_experts(changes: dict[str, object], tmp_path: Path) -> None:
    layers = built(MAVERICK.write_folder(tmp_path, **changes)).layers
    found = [isinstance(layer.mlp, MixtureOfExperts) for layer in layers]
    assert found == [False, True, False, True, False]


def test_several_experts_a_token_are_refused(tmp_path: Path) -> None:
    folder = SCOUT.write_folder(tmp_path, num_experts_per_tok=2)
    with pytest.raises(UnsupportedModelError, match="num_experts_per_tok 2 is not supported"):
        built(folder)
