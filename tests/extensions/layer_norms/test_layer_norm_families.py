"""Refusals of families with layer norms, and the places of their windows and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.attentions import attentions
from models.tiny import cohere, phi, stablelm, starcoder2

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder
    from models.tiny.base import TinyModel


def decoder(model: TinyModel, folder: Path, **changes: object) -> Decoder:
    return build(HuggingFaceCheckpoint.open(model.write_folder(folder, **changes)), 0)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (cohere.MODELS[0], "use_qk_norm"),
        (stablelm.MODELS[0], "qk_layernorm"),
        (phi.MODELS[0], "qk_layernorm"),
    ],
    ids=str,
)
def test_layer_norms_of_queries_and_keys_are_refused(
    model: TinyModel, key: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{key} True is not supported"):
        decoder(model, tmp_path, **{key: True})


@pytest.mark.parametrize("scale", [0.0, -1.0, "half"])
def test_a_factor_on_logits_that_makes_no_sense_is_refused(scale: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="logit"):
        decoder(cohere.MODELS[0], tmp_path, logit_scale=scale)


def test_a_window_of_starcoder2_is_in_all_layers(tmp_path: Path) -> None:
    model = decoder(starcoder2.MODELS[0], tmp_path, sliding_window=5)
    assert [attention.spec.window for attention in attentions(model)] == [5, 5]


def test_layers_of_cohere2_without_a_window_have_no_positions(tmp_path: Path) -> None:
    model = decoder(cohere.MODELS[1], tmp_path)
    found = [(one.spec.window, one.rope is not None) for one in attentions(model)]
    assert found == [(5, True), (5, True), (5, True), (0, False), (5, True)]
