"""Quantised safetensors are read as the values that they mean, to the bit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extensions.packed.packed_folder import (
    Bfloat,
    Float8,
    Packed,
    Storable,
    as_awq,
    as_fp8,
    as_fp8_in_blocks,
    as_gptq,
    pack,
    quantised,
    values_of,
    write_packed,
)
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.errors import HeddleError, ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.sampling_params import SamplingParams
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny.base import TOKENS
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MODEL = TinyLlama("packed", heads=4, kv_heads=2, head_dim=16, tied=True, width=64, ffn_width=128)


def write(
    folder: Path, settings: object, packer: Callable[[np.ndarray], Packed]
) -> dict[str, np.ndarray]:
    """Write the model with all matrices of its layers packed. Returns the values they mean."""
    return write_packed(MODEL, folder, settings, packer)


def check(folder: Path, meant: Mapping[str, np.ndarray], kind: TensorType) -> None:
    """Check that the folder has the values `meant`, as tensors of type `kind`."""
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        by_label = {tensor.label: tensor for tensor in checkpoint.tensors.values()}
        for label, values in meant.items():
            tensor = by_label[label]
            assert tensor.type is kind
            raw = checkpoint.read(tensor.name)
            assert raw.shape == (tensor.nbytes,)
            assert np.array_equal(dequantize(raw, kind, tensor.shape), values)


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize(
    "bits, symmetric, scatter, kind",
    [
        (4, True, False, TensorType.Q4_0),
        (4, False, False, TensorType.Q5_0),
        (8, True, False, TensorType.Q8_0),
        (8, False, False, TensorType.F32),
        (4, True, True, TensorType.F32),
    ],
)
@pytest.mark.parametrize("less_one", [True, False])
def test_gptq(
    group: int,
    bits: int,
    symmetric: bool,
    scatter: bool,
    kind: TensorType,
    less_one: bool,
    tmp_path: Path,
) -> None:
    settings = {"quant_method": "gptq", "bits": bits, "sym": symmetric, "desc_act": scatter}
    settings["checkpoint_format"] = "gptq" if less_one else "gptq_v2"
    meant = write(
        tmp_path,
        settings,
        lambda matrix: as_gptq(
            matrix, bits, group, symmetric=symmetric, less_one=less_one, scatter=scatter
        ),
    )
    check(tmp_path, meant, kind)


def test_a_zero_point_of_0_is_stored_as_15_by_the_first_version_of_gptq(tmp_path: Path) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        positive = np.abs(matrix)
        parts, values = as_gptq(positive, 4, 32, symmetric=False, less_one=True, scatter=False)
        assert np.all(parts["qzeros"] == -1)  # eight times 15 in each word
        return {**parts}, values

    check(tmp_path, write(tmp_path, GPTQ | {"sym": False}, packer), TensorType.Q5_0)


@pytest.mark.parametrize("group", [16, 32, 64])
def test_awq(group: int, tmp_path: Path) -> None:
    meant = write(
        tmp_path, {"quant_method": "awq", "bits": 4}, lambda matrix: as_awq(matrix, group)
    )
    check(tmp_path, meant, TensorType.F32 if group == 16 else TensorType.Q5_0)


def compressed(form: str, bits: object) -> dict[str, object]:
    groups = {"group_0": {"weights": {"num_bits": bits}, "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


@pytest.mark.parametrize(
    "bits, symmetric, kind",
    [(4, True, TensorType.Q4_0), (4, False, TensorType.Q5_0), (8, True, TensorType.Q8_0)],
)
def test_compressed_tensors_in_words(
    bits: int, symmetric: bool, kind: TensorType, tmp_path: Path
) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        codes, zero, scale = quantised(matrix, bits, 32, symmetric, "f4")
        rounded = (scale.view(np.uint32) & 0xFFFF0000).view(np.float32)
        parts: dict[str, Storable] = {
            "weight_packed": pack(codes, bits),
            "weight_scale": Bfloat(rounded),
            "weight_shape": np.array(matrix.shape, np.int64),
        }
        if not symmetric:
            parts["weight_zero_point"] = np.ascontiguousarray(pack(zero.T, bits).T)
        return parts, values_of(codes, zero, rounded)

    check(tmp_path, write(tmp_path, compressed("pack-quantized", bits), packer), kind)


@pytest.mark.parametrize("dtype, kind", [("f2", TensorType.Q8_0), ("f4", TensorType.F32)])
def test_compressed_tensors_of_int8(dtype: str, kind: TensorType, tmp_path: Path) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        codes, zero, scale = quantised(matrix, 8, matrix.shape[1], symmetric=True, dtype=dtype)
        return {"weight": (codes - 128).astype(np.int8), "weight_scale": scale}, values_of(
            codes, zero, scale
        )

    check(tmp_path, write(tmp_path, compressed("int-quantized", 8), packer), kind)


FP8: dict[str, object] = {"quant_method": "fp8"}


@pytest.mark.parametrize("by_row", [False, True])
def test_fp8(by_row: bool, tmp_path: Path) -> None:
    settings = compressed("float-quantized", 8) if by_row else FP8
    meant = write(tmp_path, settings, partial(as_fp8, by_row=by_row))
    check(tmp_path, meant, TensorType.F8_E4M3)


@pytest.mark.parametrize(
    "width, kind",
    [(40, TensorType.F32), (64, TensorType.F8_E4M3), (128, TensorType.F8_E4M3)],
)
def test_fp8_in_blocks(width: int, kind: TensorType, tmp_path: Path) -> None:
    """Blocks that a scale of F8_E4M3 would lie in two of are read as F32."""
    settings = FP8 | {"weight_block_size": [48, width]}
    check(
        tmp_path, write(tmp_path, settings, partial(as_fp8_in_blocks, height=48, width=width)), kind
    )


@pytest.mark.parametrize("part", ["weight", "weight_scale"])
def test_fp8_that_is_not_finite_is_refused_by_name(part: str, tmp_path: Path) -> None:
    """A code that is NaN, or a scale."""

    def packer(matrix: np.ndarray) -> Packed:
        parts, values = as_fp8(matrix, by_row=True)
        if part == "weight":
            stored = parts["weight"]
            assert isinstance(stored, Float8)
            stored.codes[7, 3] = 0xFF
        else:
            scale = parts["weight_scale"]
            assert isinstance(scale, np.ndarray)
            scale[7] = np.nan
        return parts, values

    write(tmp_path, compressed("float-quantized", 8), packer)
    with pytest.raises(ModelFileError, match=r"q_proj.weight has infinite or NaN .*row 7"):
        Engine.load(str(tmp_path), EngineConfig(slots=1, threads=1))
    Engine.load(str(tmp_path), EngineConfig(slots=1, threads=1, allow_nonfinite=True)).close()


def test_a_scale_that_16_bits_do_not_hold_is_refused(tmp_path: Path) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        codes, _zero, scale = quantised(matrix, 4, 32, True, "f4")
        tiny = np.full_like(scale, 2.0**-30)
        parts: dict[str, Storable] = {"weight_packed": pack(codes, 4), "weight_scale": Bfloat(tiny)}
        return parts | {"weight_shape": np.array(matrix.shape, np.int64)}, codes

    write(tmp_path, compressed("pack-quantized", 4), packer)
    with (
        HuggingFaceCheckpoint.open(tmp_path) as checkpoint,
        pytest.raises(UnsupportedModelError, match=r"scale 9\.31.* is not exact in 16 bits"),
    ):
        checkpoint.read("layers.0.attention.q.weight")


GPTQ: dict[str, object] = {"quant_method": "gptq", "bits": 4, "sym": True}


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"quant_method": "quanto"}, r"quant_method 'quanto' .* gptq, awq"),
        (GPTQ | {"bits": 3}, r"bits 3 is not supported; supported: 4, 8"),
        (GPTQ | {"bits": [4]}, r"bits \[4\] is not supported"),
        (FP8 | {"weight_block_size": [0, 128]}, r"weight_block_size \[0, 128\]"),
        (compressed("pack-quantized", [4]), r"num_bits 4, or 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, r"checkpoint_format 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, r"version 'gemv'"),
        (compressed("marlin-24", 4), r"format 'marlin-24'"),
        (compressed("pack-quantized", 2), r"num_bits 4, or 8"),
        ({"quant_method": "fp8", "weight_block_size": 128}, r"weight_block_size 128"),
        ("gptq", r"quant_method None"),
    ],
)
def test_other_forms_are_refused_by_name(settings: object, error: str, tmp_path: Path) -> None:
    MODEL.write_folder(tmp_path, quantization_config=settings)
    with pytest.raises(UnsupportedModelError, match=error):
        HuggingFaceCheckpoint.open(tmp_path)


@pytest.mark.parametrize(
    "part, change, error",
    [
        ("qzeros", None, r"q_proj\.qzeros is missing"),
        ("scales", lambda a: a[:, :-1], r"q_proj\.scales has shape .*; \(any, 64\) is required"),
        ("qzeros", lambda a: a[1:], r"q_proj\.qzeros has shape"),
        ("g_idx", lambda a: a[1:], r"q_proj\.g_idx has shape \(63,\); \(64\) is required"),
        ("g_idx", lambda a: a.astype("f4"), r"g_idx has dtype F32; I32 or I64 is required"),
        ("qweight", lambda a: a.astype("i8"), r"q_proj\.qweight has dtype I64; I32 is required"),
        ("scales", lambda a: a.astype("i1"), r"scales has dtype I8; F16 or BF16 or F32"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    part: str, change: Callable[[np.ndarray], np.ndarray] | None, error: str, tmp_path: Path
) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        parts, values = as_gptq(matrix, 4, 32, symmetric=True, less_one=True, scatter=False)
        changed = parts.pop(part)
        kept: dict[str, Storable] = {**parts}
        if change is not None:
            kept[part] = change(changed)
        return kept, values

    write(tmp_path, GPTQ, packer)
    with pytest.raises(ModelFileError, match=error) as caught:
        HuggingFaceCheckpoint.open(tmp_path)
    assert isinstance(caught.value, HeddleError)


@pytest.mark.parametrize("group", [-1, 2, 1_000_000])
def test_a_column_of_a_group_that_does_not_exist_is_refused(group: int, tmp_path: Path) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        parts, values = gptq(matrix, scatter=True)
        of_column = parts["g_idx"]
        assert isinstance(of_column, np.ndarray)
        of_column[3] = group
        return parts, values

    # The matrices have two groups or more.
    write(tmp_path, GPTQ | {"desc_act": True}, packer)
    with (
        HuggingFaceCheckpoint.open(tmp_path) as checkpoint,
        pytest.raises(ModelFileError, match=rf"q_proj\.g_idx names group {group}, and there are 2"),
    ):
        checkpoint.read("layers.0.attention.q.weight")


@pytest.mark.parametrize("dtype, shape", [("i1", (3, 1)), ("i4", (1,))])
def test_zero_points_that_do_not_fit_are_named(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        parts: dict[str, Storable] = {
            "weight": matrix.astype(np.int8),
            "weight_scale": np.ones(1, np.float32),
            "weight_zero_point": np.zeros(shape, dtype),
        }
        return parts, matrix

    write(tmp_path, compressed("int-quantized", 8), packer)
    with pytest.raises(HeddleError, match=r"weight_zero_point has (shape \(3, 1\)|dtype I32)"):
        HuggingFaceCheckpoint.open(tmp_path)


def test_an_empty_matrix_is_named(tmp_path: Path) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        return {
            "qweight": np.zeros((0, 64), np.int32),
            "qzeros": np.zeros((1, 8), np.int32),
            "scales": np.zeros((1, 64), np.float16),
        }, matrix

    write(tmp_path, GPTQ, packer)
    with pytest.raises(ModelFileError, match=r"q_proj\.weight has shape \(64, 0\)"):
        HuggingFaceCheckpoint.open(tmp_path)


def test_a_missing_shape_is_named(tmp_path: Path) -> None:
    def packer(matrix: np.ndarray) -> Packed:
        codes, _zero, scale = quantised(matrix, 4, 32, True)
        return {"weight_packed": pack(codes, 4), "weight_scale": scale}, matrix

    write(tmp_path, compressed("pack-quantized", 4), packer)
    with pytest.raises(ModelFileError, match="weight_shape is missing"):
        HuggingFaceCheckpoint.open(tmp_path)


def test_an_engine_runs_packed_weights(tmp_path: Path) -> None:
    """As blocks, whose activations have 8 bits, and as floats: alone and in a batch the same."""
    cases: list[tuple[dict[str, object], Callable[[np.ndarray], Packed], float]] = [
        (GPTQ, partial(gptq, scatter=False), 0.3),
        (GPTQ | {"desc_act": True}, partial(gptq, scatter=True), 0.01),
        (FP8, as_fp8, 0.01),
    ]
    for number, (settings, packer, distance) in enumerate(cases):
        folder = tmp_path / str(number)
        write(folder, settings, packer)
        with HuggingFaceCheckpoint.open(folder) as checkpoint:
            expected = ReferenceModel(checkpoint).logits(TOKENS)[-1]
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True)
        with Engine.load(str(folder), EngineConfig(slots=3, threads=2)) as engine:
            outputs = [engine.stream(TOKENS, params) for _ in range(3)]
            first, *others = [[one for delta in each for one in delta.tokens] for each in outputs]
        assert others == [first, first]
        expected -= np.log(np.exp(expected).sum())
        found = dict(first[0].top)
        assert found == {id: pytest.approx(expected[id], abs=distance) for id in found}


def gptq(matrix: np.ndarray, *, scatter: bool) -> Packed:
    parts, values = as_gptq(matrix, 4, 32, symmetric=True, less_one=True, scatter=scatter)
    return {**parts}, values
