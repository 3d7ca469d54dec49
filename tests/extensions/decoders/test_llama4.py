"""Llama 4: the end of its dense context, its layers, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from heddle.errors import UnsupportedModelError
from heddle.models.blocks import QueryKeyNorm
from heddle.models.build import build
from heddle.models.experts import MixtureOfExperts
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
    ("changes", "context"),
    [
        ({}, 8191),
        ({"attn_temperature_tuning": False}, 8192),
        ({"attention_chunk_size": 64}, 64),
        ({"floor_scale": 50}, 49),
        ({"attention_chunk_size": None, "attn_temperature_tuning": False}, 20_000),
    ],
)
def test_the_context_ends_before_the_second_chunk(
    changes: dict[str, object], context: int, tmp_path: Path
) -> None:
    folder = LONG.write_folder(tmp_path, **changes)
    assert built(folder).shape.context == context


def test_a_gguf_file_has_the_chunks_of_the_published_models(tmp_path: Path) -> None:
    assert build(LONG.checkpoint(tmp_path)).shape.context == 8191
    whole = build(LONG.checkpoint(tmp_path, {"llama4.attention.sliding_window": 0}))
    assert whole.shape.context == 20_000
    assert all(one.rope is not None for one in attentions(whole))


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
