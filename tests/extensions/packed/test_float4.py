"""NVFP4 and MXFP4 of modelopt and compressed-tensors are read as the values that they mean."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extensions.packed.packed_folder import (
    Float8,
    Packed,
    Storable,
    as_fp8,
    write_mixed,
    write_packed,
)
from heddle.errors import HeddleError, ModelFileError, UnsupportedModelError
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny.llama import TinyLlama
from tensor_blocks import E4M3

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MODEL = TinyLlama("float4", heads=4, kv_heads=2, head_dim=16, tied=True, width=64, ffn_width=128)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
FACTOR = np.float32(0.0123)


def nvfp4(matrix: np.ndarray, *, compressed: bool = False) -> Packed:
    random, (rows, columns) = np.random.RandomState(matrix.shape[1]), matrix.shape
    codes = random.randint(0, 16, (rows, columns)).astype(np.uint8)
    scales = random.randint(1, 127, (rows, columns // 16)).astype(np.uint8)
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    of_scales = E4M3[scales].astype(np.float32)
    factors = of_scales / FACTOR if compressed else of_scales * FACTOR
    values = E2M1[codes] * np.repeat(factors, 16, 1)
    names = ("weight_packed", "weight_global_scale") if compressed else ("weight", "weight_scale_2")
    parts: dict[str, Storable] = {
        names[0]: pairs,
        "weight_scale": Float8(scales),
        names[1]: FACTOR.reshape(1) if compressed else np.array(FACTOR),
        "input_scale": np.ones((), np.float32),
    }
    assert values.dtype == np.float32
    return parts, values


def mxfp4(matrix: np.ndarray) -> Packed:
    random, (rows, columns) = np.random.RandomState(matrix.shape[1]), matrix.shape
    codes = random.randint(0, 16, (rows, columns)).astype(np.uint8)
    scales = random.randint(100, 130, (rows, columns // 32)).astype(np.uint8)
    values = E2M1[codes] * np.repeat(np.exp2(scales.astype(np.float32) - 127), 32, 1)
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    return {"weight_packed": pairs, "weight_scale": scales}, values.astype(np.float32)


def check(folder: Path, meant: Mapping[str, np.ndarray], kinds: set[TensorType]) -> None:
    found = set()
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        by_label = {tensor.label: tensor for tensor in checkpoint.tensors.values()}
        for label, values in meant.items():
            tensor = by_label[label]
            found.add(tensor.type)
            raw = checkpoint.read(tensor.name)
            assert np.array_equal(dequantize(raw, tensor.type, tensor.shape), values), label
            assert np.array_equal(checkpoint.read(tensor.name, 50, 300), raw[50:350])
    assert found == kinds


@pytest.mark.parametrize(
    ("settings", "packer", "kind"),
    [
        (MODELOPT, nvfp4, TensorType.F32),
        (MODELOPT | {"quant_algo": "FP8"}, as_fp8, TensorType.F8_E4M3),
        (COMPRESSED, partial(nvfp4, compressed=True), TensorType.F32),
        (COMPRESSED | {"format": "mxfp4-pack-quantized"}, mxfp4, TensorType.MXFP4),
    ],
)
def test_values_to_the_bit(
    settings: object, packer: Callable[[np.ndarray], Packed], kind: TensorType, tmp_path: Path
) -> None:
    check(tmp_path, write_packed(MODEL, tmp_path, settings, packer), {kind})


def test_a_folder_of_mixed_precision_has_both(tmp_path: Path) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        return nvfp4(matrix) if matrix.shape[1] == 64 else as_fp8(matrix)

    settings = MODELOPT | {"quant_algo": "MIXED_PRECISION"}
    meant = write_packed(MODEL, tmp_path, settings, packer)
    check(tmp_path, meant, {TensorType.F32, TensorType.F8_E4M3})


def test_older_folders_have_their_settings_in_a_file_beside(tmp_path: Path) -> None:
    meant = write_packed(MODEL, tmp_path, MODELOPT, nvfp4)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    quantised = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    text = json.dumps({"producer": {"name": "modelopt"}, "quantization": quantised})
    (tmp_path / "hf_quant_config.json").write_text(text)
    check(tmp_path, meant, {TensorType.F32})


@pytest.mark.parametrize("algorithm", ["W4A8_AWQ", None, ["NVFP4"], "FP8_PB_WO"])
def test_other_algorithms_are_refused_by_name(algorithm: object, tmp_path: Path) -> None:
    write_packed(MODEL, tmp_path, MODELOPT | {"quant_algo": algorithm}, nvfp4)
    with pytest.raises(UnsupportedModelError, match=r"quant_algo .* supported: FP8, NVFP4"):
        HuggingFaceCheckpoint.open(tmp_path)


UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({f"{UP}.weight_scale_2": None}, f"tensor {UP}.weight_scale_2 is missing"),
        (
            {f"{UP}.weight_scale_2": np.ones(2, np.float32)},
            rf"{UP}.weight_scale_2 has shape \(2,\)",
        ),
        ({f"{UP}.weight_scale_2": np.ones((), np.int32)}, f"{UP}.weight_scale_2 has dtype I32"),
        ({f"{UP}.weight_scale": np.ones((128, 4), np.uint8)}, f"{UP}.weight_scale has dtype U8"),
        ({f"{UP}.weight_scale": Float8(np.ones((128, 5), np.uint8))}, rf"{UP}.weight_scale has sh"),
        ({f"{UP}.weight": np.ones((128, 31), np.uint8)}, rf"{UP}.weight has 62 columns, which"),
        ({f"{UP}.weight": np.ones((128, 0), np.uint8)}, rf"{UP}.weight_scale has shape"),
        ({f"{UP}.weight": np.ones((2, 128, 32), np.uint8)}, rf"{UP}.weight has shape"),
        (
            {f"{UP}.pre_quant_scale": np.ones(64, np.float32)},
            f"{UP}.pre_quant_scale: scales of inp",
        ),
    ],
)
def test_damaged_parts_are_refused_by_name(
    damage: dict[str, Storable | None], problem: str, tmp_path: Path
) -> None:
    MODEL.write_folder(tmp_path, quantization_config=MODELOPT)
    tensors: dict[str, Storable] = {}
    for name, values in MODEL.state().items():
        if "layers" in name and values.ndim == 2:
            parts, _ = nvfp4(values)
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{part}": one for part, one in parts.items()}
        else:
            tensors[name] = values
    changed = {name: one for name, one in (tensors | damage).items() if one is not None}
    write_mixed(tmp_path / "model.safetensors", changed)
    with pytest.raises(HeddleError, match=problem) as caught:
        HuggingFaceCheckpoint.open(tmp_path)
    assert isinstance(caught.value, ModelFileError | UnsupportedModelError)
