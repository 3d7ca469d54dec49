"""Apertus: the numbers of its activation, from either format, and those that are refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from folder_writer import write_safetensors
from heddle.errors import HeddleError
from heddle.extensions.apertus.xielu import Xielu, XieluMLP
from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.reference.ops import ReferenceOps
from heddle.models.build import build
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny.apertus import MODELS

if TYPE_CHECKING:
    from pathlib import Path

MODEL = MODELS[0]
NUMBERS = {"alpha_p": 0.8, "alpha_n": 30.0, "beta": 0.5, "eps": -1e-6}


def test_the_activation_is_that_of_its_definition() -> None:
    x = np.array([[-20, -2, -0.3, -1e-3, -1e-7, 0, 1e-3, 0.4, 7]], np.float32)
    found = Xielu.of(NUMBERS, "mlp").forward(ReferenceOps([]), x, x.shape[1])
    exact = x.astype(np.float64)
    positive = math.log1p(math.exp(0.8))
    negative = 0.5 + math.log1p(math.exp(30.0))
    tail = np.expm1(np.minimum(exact, -1e-6)) - exact
    expected = np.where(exact > 0, positive * exact**2, negative * tail) + 0.5 * exact
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-6)


def test_a_gguf_file_has_the_numbers_as_metadata(tmp_path: Path) -> None:
    layers = build(MODEL.checkpoint(tmp_path)).layers
    state = MODEL.state()
    for i, layer in enumerate(layers):
        stored = {name: state[f"model.layers.{i}.mlp.act_fn.{name}"].item() for name in NUMBERS}
        assert isinstance(layer.mlp, XieluMLP)
        assert layer.mlp.activation == Xielu.of(stored, "")
    assert layers[0].mlp != layers[1].mlp


@pytest.mark.parametrize(
    ("key", "values", "problem"),
    [
        ("xielu.alpha_p", None, r"xielu\.alpha_p must have 2 numbers, got None"),
        ("xielu.beta", [0.5], r"xielu\.beta must have 2 numbers, got \[0\.5\]"),
        ("xielu.alpha_n", [0.5, math.nan], r"blk\.1\.xielu\.alpha_n is nan; numbers of xIELU lie"),
        ("xielu.alpha_n", [1e6, 1.0], r"blk\.0\.xielu\.alpha_n is 1e\+06"),
        ("xielu.eps", [-1e-6, -1e-3], r"blk\.1\.xielu\.eps -0\.001 is not supported"),
    ],
)
def test_wrong_numbers_of_a_gguf_file_are_named(
    key: str, values: list[float] | None, problem: str, tmp_path: Path
) -> None:
    changed = None if values is None else np.array(values, np.float32)
    with pytest.raises(HeddleError, match=problem):
        build(MODEL.checkpoint(tmp_path, {key: changed}))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("beta", np.float32(1e9).reshape(()), r"mlp\.beta is 1e\+09; numbers of xIELU lie"),
        ("eps", np.float32(0.0).reshape(()), r"mlp\.eps 0 is not supported"),
        ("alpha_p", np.ones(2, np.float32), r"mlp\.act_fn\.alpha_p has shape \(2,\)"),
    ],
)
def test_wrong_numbers_of_a_folder_are_named(
    name: str, value: np.ndarray, problem: str, tmp_path: Path
) -> None:
    folder = MODEL.write_folder(tmp_path)
    state = MODEL.state() | {f"model.layers.1.mlp.act_fn.{name}": value}
    write_safetensors(folder / "model.safetensors", state)
    with (
        HuggingFaceCheckpoint.open(folder) as checkpoint,
        pytest.raises(HeddleError, match=problem),
    ):
        ReferenceModel(checkpoint)


def test_another_activation_is_refused(tmp_path: Path) -> None:
    folder = MODEL.write_folder(tmp_path, hidden_act="silu")
    with (
        HuggingFaceCheckpoint.open(folder) as checkpoint,
        pytest.raises(HeddleError, match="hidden_act 'silu' is not supported; supported: xielu"),
    ):
        build(checkpoint)
