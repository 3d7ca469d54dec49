"""The families of the core's blocks: each is listed, and brings no block of its own."""

from __future__ import annotations

import importlib
import math
import pkgutil
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions import decoders
from heddle.extensions.decoders import bailing_moe as ling
from heddle.models.build import build
from heddle.models.experts import MixtureOfExperts
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny import bailing_moe, ernie4_5_moe, internlm, minicpm

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

MODULES = [
    importlib.import_module(f"{decoders.__name__}.{file.name}")
    for file in pkgutil.iter_modules(decoders.__path__)
]
FAMILIES = [module for module in MODULES if hasattr(module, "FAMILY")]


def test_each_family_is_listed() -> None:
    named = {f"{module.__name__}:FAMILY" for module in FAMILIES}
    assert set(decoders.EXTENSION.families) == named


def test_sparse_attention_of_minicpm_is_refused(tmp_path: Path) -> None:
    folder = minicpm.MODELS[0].write_folder(tmp_path, sparse_config={"topk": 64})
    with pytest.raises(UnsupportedModelError, match="sparse_config is not supported"):
        HuggingFaceCheckpoint.open(folder)


def test_the_first_files_of_minicpm_have_the_factors_of_its_first_model(tmp_path: Path) -> None:
    names = ("residual_scale", "logit_scale")
    changes: dict[str, object] = {f"minicpm.{name}": None for name in names}
    model = build(minicpm.MODELS[0].checkpoint(tmp_path, changes))
    assert model.embedding_scale == 12.0
    assert model.layers[0].residual_scale == pytest.approx(1.4 / math.sqrt(2))
    assert model.logit_scale == pytest.approx(256 / 32)


def test_sizes_that_do_not_divide_internlms_groups_are_refused(tmp_path: Path) -> None:
    folder = internlm.MODELS[0].write_folder(tmp_path, num_key_value_heads=3)
    with pytest.raises(ModelFileError, match=r"wqkv\.weight has shape .* do not divide"):
        HuggingFaceCheckpoint.open(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [False, True, False]),
        ({"moe_layer_interval": 1}, [False, True, True]),
        ({"moe_layer_interval": 1, "moe_layer_end_index": 1}, [False, True, False]),
        ({"moe_layer_interval": 1, "moe_layer_start_index": 2}, [False, False, True]),
    ],
)
def test_layers_of_ernie_with_experts_are_those_of_config_json(
    changes: dict[str, object], expected: list[bool], tmp_path: Path
) -> None:
    folder = ernie4_5_moe.MODELS[0].write_folder(tmp_path, **changes)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        layers = build(checkpoint).layers
    assert [isinstance(layer.mlp, MixtureOfExperts) for layer in layers] == expected


def test_a_step_of_ernie_that_is_no_number_is_refused(tmp_path: Path) -> None:
    folder = ernie4_5_moe.MODELS[0].write_folder(tmp_path, moe_layer_interval=0)
    with (
        HuggingFaceCheckpoint.open(folder) as checkpoint,
        pytest.raises(ModelFileError, match="must have 3 entries"),
    ):
        build(checkpoint)


@pytest.mark.parametrize(("dtype", "bits"), [("F32", 24), ("F16", 11), ("BF16", 8)])
def test_columns_of_lings_output_matrix_have_length_1_in_its_dtype(
    dtype: str, bits: int, tmp_path: Path
) -> None:
    """Each value is as near as its type allows."""
    model = bailing_moe.MODELS[1]
    matrix = model.state()["lm_head.weight"]
    stored = {
        "F32": matrix,
        "F16": matrix.astype(np.float16),
        "BF16": (matrix.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
    }
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path, dtype)) as checkpoint:
        info = checkpoint.tensors["output.weight"]
        raw = checkpoint.read(info.name)
        found = dequantize(raw, TensorType[dtype], info.shape)
    assert info.type is TensorType[dtype]
    expected = model.output({"lm_head.weight": stored[dtype].astype(np.float64)})
    np.testing.assert_allclose(found, expected, rtol=1.1 * 2.0**-bits, atol=1e-7)


def test_an_output_matrix_of_ling_in_a_quantised_type_is_refused() -> None:
    make = ling.FAMILY.hf["bailing_moe"].make
    assert make is not None
    tensors = {"lm_head.weight": SimpleNamespace(dtype="I8", shape=(2, 2))}
    with pytest.raises(UnsupportedModelError, match=r"lm_head\.weight of type I8 is not supported"):
        make(tensors, {"norm_head": True})
    assert make(tensors, {"norm_head": False}) == {}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
def test_a_family_has_no_block_of_its_own(module: ModuleType) -> None:
    blocks = [value for value in vars(module).values() if hasattr(value, "forward")]
    assert [one for one in blocks if one.__module__ == module.__name__] == []
