"""Values that gemma2.py reads from a checkpoint; test_logits.py and test_folders.py test logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.decoders import gemma2
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.hyperparameters import Hyperparameters
from models.attentions import attentions
from models.tiny.gemma2 import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder

CAPPED = MODELS[0]


def built(folder: Path, **changes: Any) -> Decoder:
    with HuggingFaceCheckpoint.open(CAPPED.write_folder(folder, **changes)) as checkpoint:
        return build(checkpoint)


def caps(model: Decoder) -> tuple[float, float]:
    return attentions(model)[0].spec.soft_cap, model.logit_cap


def test_every_second_layer_sees_everything_without_a_list_too(tmp_path: Path) -> None:
    for model in (built(tmp_path), build(CAPPED.checkpoint(tmp_path))):
        assert [one.spec.window for one in attentions(model)] == [4, 0, 4]
    kinds = ["full_attention", "full_attention", "sliding_attention"]
    listed = built(tmp_path, layer_types=kinds)
    assert [one.spec.window for one in attentions(listed)] == [0, 0, 4]


def test_null_is_no_cap_and_a_missing_key_the_default(tmp_path: Path) -> None:
    off = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert caps(built(tmp_path)) == (4.0, 1.5)
    assert caps(built(tmp_path, **off)) == (0.0, 0.0)
    keys = {"gemma2.attn_logit_softcapping": None, "gemma2.final_logit_softcapping": 0.0}
    assert caps(build(CAPPED.checkpoint(tmp_path, keys))) == (50.0, 0.0)


@pytest.mark.parametrize(("layers", "divisor"), [(42, 256), (46, 144)])
def test_the_27b_model_has_its_own_attention_scale(layers: int, divisor: float) -> None:
    values = {"layers": layers, "width": 4608, "mlp_width": 8, "heads": 32, "key_dim": 256}
    values |= {"context": 64, "vocabulary": 32, "window": 4}
    model = gemma2.build(Hyperparameters(values | {"norm_eps": 1e-6}), 0)
    assert {one.spec.scale for one in attentions(model)} == {1 / math.sqrt(divisor)}


def test_a_negative_cap_and_another_activation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="softcapping must be a positive number, got -1"):
        built(tmp_path, final_logit_softcapping=-1)
    with pytest.raises(UnsupportedModelError, match="'silu' is not supported; supported: gelu"):
        built(tmp_path, hidden_activation="silu")
