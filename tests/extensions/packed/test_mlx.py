"""Folders of MLX are read as the values that they mean, to the bit.

The writers follow `mlx/ops.cpp` and `mlx_lm`; no code of Heddle's is used.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extensions.packed.packed_folder import Bfloat, Packed, Storable, write_mixed
from heddle.errors import HeddleError, ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny import FAMILIES
from models.tiny.base import TOKENS
from models.tiny.base_mixture import TinyMixture
from models.tiny.llama import TinyLlama
from tensor_blocks import E4M3

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MODEL = TinyLlama("mlx", heads=4, kv_heads=2, head_dim=16, tied=True, width=64, ffn_width=128)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Words (rows, n) of codes: bit i of code j is bit `bits * j + i` of the row."""
    single = codes[..., None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32) & 1
    stream = single.reshape(len(codes), -1, 32)
    powers = np.uint64(1) << np.arange(32, dtype=np.uint64)
    return (stream * powers).sum(-1).astype(np.uint32)


def bfloat(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def affine(
    matrix: np.ndarray, bits: int, group: int, dtype: str = "bf16", tiny: float = 0
) -> Packed:
    """Codes, scales and biases of groups; some of the scales are `tiny`."""
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, -1, group)
    low, top = groups.min(2), (1 << bits) - 1
    scale = (groups.max(2) - low) / top
    if tiny:
        scale[0, 0] = tiny
    round_off = bfloat if dtype == "bf16" else lambda one: one.astype(dtype).astype(np.float32)
    scale, low = round_off(scale), round_off(low)
    codes = np.clip(np.rint((groups - low[..., None]) / scale[..., None]), 0, top).astype(np.uint8)
    values = codes.astype(np.float32) * scale[..., None] + low[..., None]
    stored: Callable[[np.ndarray], Storable]
    stored = Bfloat if dtype == "bf16" else lambda one: one.astype(dtype)
    parts = {
        "weight": words(codes.reshape(rows, columns), bits),
        "scales": stored(scale),
        "biases": stored(low),
    }
    return parts, values.reshape(rows, columns).astype(np.float32)


def floats(matrix: np.ndarray, mode: str, *, sign: bool = False) -> Packed:
    """Codes of E2M1 or E4M3 at random, with scales of a byte."""
    random, (rows, columns) = np.random.RandomState(columns_of := matrix.shape[1]), matrix.shape
    assert columns_of == columns
    if mode == "mxfp8":
        codes = random.randint(0, 127, (rows, columns), np.uint8) | random.randint(
            0, 2, (rows, columns)
        ).astype(np.uint8) << np.uint8(7)
        codes[codes & 127 == 127] = 0
        meant, bits = E4M3[codes].astype(np.float32), 8
    else:
        codes = random.randint(0, 16, (rows, columns)).astype(np.uint8)
        meant, bits = E2M1[codes], 4
    group = 16 if mode == "nvfp4" else 32
    if mode == "nvfp4":
        scales = random.randint(1, 120, (rows, columns // group)).astype(np.uint8)
        if sign:
            scales[0, 0] |= 0x80
        factors = E4M3[scales].astype(np.float32)
    else:
        scales = random.randint(110, 126, (rows, columns // group)).astype(np.uint8)
        factors = np.exp2(scales.astype(np.float32) - 127)
    values = meant * np.repeat(factors, group, 1).astype(np.float32)
    return {"weight": words(codes, bits), "scales": scales}, values


def write(
    folder: Path,
    settings: Mapping[str, object],
    packers: Callable[[str], Callable[[np.ndarray], Packed] | None],
) -> dict[str, np.ndarray]:
    """Write the model with the matrices packed that `packers` has a packer for."""
    MODEL.write_folder(folder, quantization=settings, quantization_config=settings)
    tensors: dict[str, Storable] = {}
    meant = {}
    for name, values in MODEL.state().items():
        stem = name.removesuffix(".weight")
        packer = packers(stem) if values.ndim == 2 else None
        if packer is None:
            tensors[name] = values
            continue
        parts, meant[name] = packer(values)
        tensors |= {f"{stem}.{part}": one for part, one in parts.items()}
    write_mixed(folder / "model.safetensors", tensors)
    return meant


def check(folder: Path, meant: Mapping[str, np.ndarray], kinds: set[TensorType]) -> None:
    """Check that the folder has the values `meant`, in whole and in parts, as types `kinds`."""
    found = set()
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        by_label = {tensor.label: tensor for tensor in checkpoint.tensors.values()}
        for label, values in meant.items():
            tensor = by_label[label]
            found.add(tensor.type)
            raw = checkpoint.read(tensor.name)
            assert np.array_equal(dequantize(raw, tensor.type, tensor.shape), values), label
            assert np.array_equal(checkpoint.read(tensor.name, 100, 300), raw[100:400])
    assert found == kinds


@pytest.mark.parametrize("dtype", ["bf16", "f2", "f4"])
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (2, TensorType.Q4_1),
        (3, TensorType.Q4_1),
        (4, TensorType.Q4_1),
        (5, TensorType.Q5_1),
        (6, TensorType.F32),
        (8, TensorType.F32),
    ],
)
def test_integers_with_scales_and_biases(
    bits: int, kind: TensorType, group: int, dtype: str, tmp_path: Path
) -> None:
    settings = {"group_size": group, "bits": bits}
    packer = partial(affine, bits=bits, group=group, dtype=dtype)
    meant = write(tmp_path, settings, lambda stem: packer)
    assert "model.embed_tokens.weight" in meant
    check(tmp_path, meant, {TensorType.F32 if dtype == "f4" else kind})


def test_a_scale_that_16_bits_do_not_hold_makes_its_matrix_f32(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """2**-30 is 0 in 16 bits. The other matrices keep their type, and the log names the one."""

    def packer(stem: str) -> Callable[[np.ndarray], Packed]:
        tiny = 2.0**-30 if stem == "model.layers.0.mlp.up_proj" else 0
        return partial(affine, bits=4, group=64, tiny=tiny)

    meant = write(tmp_path, {"group_size": 64, "bits": 4}, packer)
    with caplog.at_level(logging.WARNING):
        check(tmp_path, meant, {TensorType.Q4_1, TensorType.F32})
    assert f"1 of {len(meant)} quantised matrices are held as F32" in caplog.text
    assert "model.layers.0.mlp.up_proj.weight" in caplog.text


def test_a_module_may_have_settings_of_its_own(tmp_path: Path) -> None:
    own = "model.layers.0.mlp.down_proj"
    plain = "model.layers.0.mlp.gate_proj"
    settings = {"group_size": 64, "bits": 4, own: {"group_size": 32, "bits": 5}, plain: False}

    def packer(stem: str) -> Callable[[np.ndarray], Packed] | None:
        if stem == plain:
            return None
        return partial(affine, bits=5 if stem == own else 4, group=32 if stem == own else 64)

    meant = write(tmp_path, settings, packer)
    check(tmp_path, meant, {TensorType.Q4_1, TensorType.Q5_1})


@pytest.mark.parametrize(
    ("mode", "sign", "kind"),
    [
        ("mxfp4", False, TensorType.MXFP4),
        ("nvfp4", False, TensorType.NVFP4),
        ("nvfp4", True, TensorType.F32),
        ("mxfp8", False, TensorType.F32),
    ],
)
def test_floats_with_scales_of_a_byte(
    mode: str, sign: bool, kind: TensorType, tmp_path: Path
) -> None:
    """A scale of NVFP4 with a sign is in no file of MLX; its matrix is read as F32."""
    settings = {"group_size": 16 if mode == "nvfp4" else 32, "bits": 4, "mode": mode}
    settings["bits"] = 8 if mode == "mxfp8" else 4
    meant = write(tmp_path, settings, lambda stem: partial(floats, mode=mode, sign=sign))
    check(tmp_path, meant, {kind})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"group_size": 64, "bits": 7}, r"quantization_config.bits 7 .* 2, 3, 4, 5, 8|bits 7"),
        ({"group_size": 64, "bits": True}, "bits True is not supported"),
        ({"group_size": 16, "bits": 4}, "group_size 16 is not supported"),
        ({"group_size": 1 << 62, "bits": 4}, "group_size 4611686018427387904 is not"),
        ({"bits": 4}, "group_size None is not supported"),
        ({"group_size": 64, "bits": 4, "mode": "vq"}, "mode 'vq' is not supported"),
        ({"group_size": 64, "bits": 4, "mode": []}, r"mode \[\] is not supported"),
        ({"group_size": 64, "bits": 4, "mode": "mxfp4"}, "group_size 64 is not supported"),
        ({"bits": 8, "mode": "nvfp4"}, "bits 8 is not supported"),
        (
            {"group_size": 64, "bits": 4, "model.layers.0.mlp.up_proj": {"bits": 9}},
            "model.layers.0.mlp.up_proj.bits 9 is not supported",
        ),
    ],
)
def test_settings_that_nobody_writes_are_refused_by_name(
    settings: dict[str, object], problem: str, tmp_path: Path
) -> None:
    write(tmp_path, settings, lambda stem: partial(affine, bits=4, group=64))
    with pytest.raises(UnsupportedModelError, match=problem):
        HuggingFaceCheckpoint.open(tmp_path)


UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({f"{UP}.biases": None}, f"tensor {UP}.biases is missing"),
        ({f"{UP}.weight": None}, f"tensor {UP}.weight is missing"),
        ({f"{UP}.scales": np.ones((128, 2), np.float32)}, rf"tensor {UP}.scales has shape"),
        ({f"{UP}.scales": np.ones((128, 1), np.uint32)}, rf"tensor {UP}.scales has dtype U32"),
        ({f"{UP}.weight": np.ones((128, 7), np.uint32)}, rf"{UP}.weight .* no whole groups of 64"),
        ({f"{UP}.weight": np.ones((128, 0), np.uint32)}, rf"{UP}.weight .* no whole groups of 64"),
        ({f"{UP}.weight": np.ones((128, 8), np.int32)}, rf"tensor {UP}.weight has dtype I32"),
        ({f"{UP}.weight": np.ones((2, 128, 8), np.uint32)}, rf"{UP}.weight has three axes"),
        (
            {"model.layers.0.linear_attn.conv1d.weight": np.ones((8, 4, 1), np.float32)},
            "conv1d.weight: MLX has changed the order",
        ),
    ],
)
def test_damaged_parts_are_refused_by_name(
    damage: dict[str, np.ndarray | None], problem: str, tmp_path: Path
) -> None:
    MODEL.write_folder(tmp_path, quantization={"group_size": 64, "bits": 4})
    tensors: dict[str, Storable] = {}
    for name, values in MODEL.state().items():
        tensors |= {name: values}
        if values.ndim == 2:
            stem = name.removesuffix(".weight")
            parts, _ = affine(values, 4, 64)
            tensors |= {f"{stem}.{part}": one for part, one in parts.items()}
    changed = {name: one for name, one in (tensors | damage).items() if one is not None}
    write_mixed(tmp_path / "model.safetensors", changed)
    with pytest.raises(HeddleError, match=problem) as caught:
        HuggingFaceCheckpoint.open(tmp_path)
    assert isinstance(caught.value, ModelFileError | UnsupportedModelError)


@pytest.mark.parametrize(
    ("family", "of_mlx"),
    [
        ("qwen3_moe", {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}),
        ("mixtral", {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}),
    ],
)
def test_stacks_of_experts(family: str, of_mlx: dict[str, str], tmp_path: Path) -> None:
    """MLX has one tensor for a part of all experts. The model computes what it means."""
    base = FAMILIES[family][0]
    assert isinstance(base, TinyMixture)
    model = replace(base, width=64, expert_width=64, ffn_width=128, layers=2)
    plain = model.state()
    stacks: dict[str, list[dict[str, Storable]]] = defaultdict(list)
    for name, values in model.state().items():
        match = re.fullmatch(r"(.+)\.experts\.\d+\.(\w+)\.weight", name)
        if match is not None:
            parts, plain[name] = affine(values, 4, 32, "f2")
            stacks[f"{match[1]}.switch_mlp.{of_mlx[match[2]]}"].append(dict(parts))
    tensors: dict[str, Storable] = {
        name: values for name, values in model.state().items() if ".experts." not in name
    }
    for stem, experts in stacks.items():
        for part in ("weight", "scales", "biases"):
            tensors[f"{stem}.{part}"] = np.stack([expert[part] for expert in experts])
    folders = tmp_path / "mlx", tmp_path / "plain"
    model.write_folder(folders[0], quantization={"group_size": 32, "bits": 4})
    write_mixed(folders[0] / "model.safetensors", tensors)
    model.write_folder(folders[1])
    write_mixed(folders[1] / "model.safetensors", plain)
    opened = [HuggingFaceCheckpoint.open(folder) for folder in folders]
    of_experts = [one for one in opened[0].tensors.values() if ".experts." in one.name]
    assert {one.type for one in of_experts} == {TensorType.Q4_1}
    said = [ReferenceModel(one).logits(TOKENS) for one in opened]
    for one in opened:
        one.close()
    np.testing.assert_array_equal(*said)
