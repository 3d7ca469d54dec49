"""Quantised matrices of experts land in the stacked tensors, to the bit and in order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extensions.packed.packed_folder import (
    Bfloat,
    Packed,
    Storable,
    as_awq,
    as_fp8_in_blocks,
    as_gptq,
    pack,
    quantised,
    values_of,
    write_mixed,
)
from heddle.config import EngineConfig
from heddle.engine.engine import Engine
from heddle.errors import ModelFileError
from heddle.extensions.reference.model import ReferenceModel
from heddle.sampling_params import SamplingParams
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize
from models.tiny import FAMILIES
from models.tiny.base import TOKENS
from models.tiny.base_mixture import TinyMixture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from heddle.weights.checkpoint import Checkpoint


def tiny(family: str) -> TinyMixture:
    """The family's first tiny model, with matrices whose sides are whole blocks of 64."""
    model = FAMILIES[family][0]
    assert isinstance(model, TinyMixture)
    return replace(model, width=64, expert_width=64, ffn_width=128, layers=2)


def gptq(matrix: np.ndarray, *, scatter: bool = False) -> Packed:
    parts, values = as_gptq(matrix, 4, 32, symmetric=True, less_one=True, scatter=scatter)
    return {**parts}, values


def awq(matrix: np.ndarray) -> Packed:
    parts, values = as_awq(matrix, 32)
    return {**parts}, values


def words(matrix: np.ndarray) -> Packed:
    """compressed-tensors of 4 bits."""
    codes, zero, scale = quantised(matrix, 4, 32, symmetric=True, dtype="f4")
    rounded = (scale.view(np.uint32) & 0xFFFF0000).view(np.float32)
    shape = np.array(matrix.shape, np.int64)
    parts: dict[str, Storable] = {
        "weight_packed": pack(codes, 4),
        "weight_scale": Bfloat(rounded),
        "weight_shape": shape,
    }
    return parts, values_of(codes, zero, rounded)


def int8(matrix: np.ndarray) -> Packed:
    """compressed-tensors of 8 bits, with the scale of activations that such folders have."""
    codes, zero, scale = quantised(matrix, 8, matrix.shape[1], symmetric=True)
    parts = {"weight": (codes - 128).astype(np.int8), "weight_scale": scale}
    return parts | {"input_scale": np.ones(1, np.float32)}, values_of(codes, zero, scale)


def compressed(form: str, bits: int) -> dict[str, object]:
    groups = {"group_0": {"weights": {"num_bits": bits}, "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


GPTQ: dict[str, object] = {"quant_method": "gptq", "bits": 4, "sym": True}
FP8: dict[str, object] = {"quant_method": "fp8"}
IN_BLOCKS = partial(as_fp8_in_blocks, height=24)
FORMS: dict[str, tuple[dict[str, object], Callable[[np.ndarray], Packed], TensorType]] = {
    "gptq": (GPTQ, gptq, TensorType.Q4_0),
    "gptq act-order": (GPTQ | {"desc_act": True}, partial(gptq, scatter=True), TensorType.F32),
    "awq": ({"quant_method": "awq", "bits": 4}, awq, TensorType.Q5_0),
    "compressed-tensors w4": (compressed("pack-quantized", 4), words, TensorType.Q4_0),
    "compressed-tensors w8": (compressed("int-quantized", 8), int8, TensorType.Q8_0),
    "fp8": (
        FP8 | {"weight_block_size": [24, 64]},
        partial(IN_BLOCKS, width=64),
        TensorType.F8_E4M3,
    ),
    "fp8 in odd blocks": (
        FP8 | {"weight_block_size": [24, 40]},
        partial(IN_BLOCKS, width=40),
        TensorType.F32,
    ),
}


def write(folder: Path, model: TinyMixture, form: str, without: str = "") -> dict[str, np.ndarray]:
    """Write the model with all matrices of its layers packed, but for routers.

    Returns the values that all tensors mean. Leaves out the stored tensor `without`.
    """
    settings, packer, _ = FORMS[form]
    model.write_folder(folder, quantization_config=settings)
    tensors: dict[str, Storable] = {}
    meant = {}
    for name, values in model.state().items():
        meant[name] = values
        is_router = name.endswith(f"{model.router}.weight")
        if "layers" not in name or values.ndim != 2 or is_router:
            tensors[name] = values
            continue
        parts, meant[name] = packer(values)
        stem = name.removesuffix(".weight")
        tensors |= {f"{stem}.{part}": one for part, one in parts.items()}
    tensors.pop(without, None)
    write_mixed(folder / "model.safetensors", tensors)
    return meant


def stacks(checkpoint: Checkpoint) -> dict[str, str]:
    """Labels of the stacked tensors, by canonical name."""
    return {name: one.label for name, one in checkpoint.tensors.items() if ".experts." in name}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "glm4_moe"])
def test_each_expert_is_read_as_its_values(family: str, form: str, tmp_path: Path) -> None:
    model = tiny(family)
    meant = write(tmp_path, model, form)
    with HuggingFaceCheckpoint.open(tmp_path) as checkpoint:
        found = stacks(checkpoint)
        assert found
        for name, label in found.items():
            tensor = checkpoint.tensors[name]
            assert (tensor.type, tensor.shape[0]) == (FORMS[form][2], model.experts)
            raw = checkpoint.read(name)
            assert raw.nbytes == tensor.nbytes
            values = dequantize(raw, tensor.type, tensor.shape)
            for expert in range(model.experts):
                assert np.array_equal(values[expert], meant[label.replace("*", str(expert))])


@pytest.mark.parametrize("form", FORMS)
def test_a_part_of_a_stack_is_a_part_of_its_bytes(form: str, tmp_path: Path) -> None:
    """Across matrices, and within a row; of FP8 and int8, only these rows are read."""
    write(tmp_path, tiny("qwen3_moe"), form)
    with HuggingFaceCheckpoint.open(tmp_path) as checkpoint:
        for name in stacks(checkpoint):
            whole = checkpoint.read(name)
            matrix = whole.size // checkpoint.tensors[name].shape[0]
            for start, size in ((0, 5), (matrix - 7, 11), (matrix + 3, 2 * matrix), (5, 0)):
                part = checkpoint.read(name, start, size)
                assert np.array_equal(part, whole[start : start + size])
            assert np.array_equal(checkpoint.read(name, matrix), whole[matrix:])
            by_rows = form.startswith("fp8") or form == "compressed-tensors w8"
            assert checkpoint.reads_parts(name) == by_rows


@pytest.mark.parametrize("form", FORMS)
def test_a_model_of_packed_experts_computes_what_its_values_mean(form: str, tmp_path: Path) -> None:
    """The logits of a folder with the same values as floats."""
    model = tiny("glm4_moe")
    meant = write(tmp_path / "packed", model, form)
    plain = model.write_folder(tmp_path / "plain")
    write_mixed(plain / "model.safetensors", dict(meant))
    with HuggingFaceCheckpoint.open(plain) as checkpoint:
        expected = ReferenceModel(checkpoint).logits(TOKENS)
    with HuggingFaceCheckpoint.open(tmp_path / "packed") as checkpoint:
        assert np.array_equal(ReferenceModel(checkpoint).logits(TOKENS), expected)


@pytest.mark.parametrize(("form", "distance"), [("gptq act-order", 0.02), ("awq", 0.5)])
def test_an_engine_runs_packed_experts(form: str, distance: float, tmp_path: Path) -> None:
    """F32 experts, and blocks whose activations have 8 bits; alone and in a batch the same."""
    write(tmp_path, tiny("qwen3_moe"), form)
    with HuggingFaceCheckpoint.open(tmp_path) as checkpoint:
        expected = ReferenceModel(checkpoint).logits(TOKENS)[-1]
    expected -= np.log(np.exp(expected).sum())
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5, ignore_eos=True)
    with Engine.load(str(tmp_path), EngineConfig(slots=3, threads=2)) as engine:
        outputs = [engine.stream(TOKENS, params) for _ in range(3)]
        first, *others = [[one for delta in each for one in delta.tokens] for each in outputs]
    assert others == [first, first]
    found = dict(first[0].top)
    assert found == {id: pytest.approx(expected[id], abs=distance) for id in found}


@pytest.mark.parametrize(("part", "named"), [("scales", "scales"), ("qweight", "weight")])
def test_an_expert_that_is_missing_is_named(part: str, named: str, tmp_path: Path) -> None:
    expert = "model.layers.0.block_sparse_moe.experts.2.w1"
    write(tmp_path, tiny("mixtral"), "gptq", without=f"{expert}.{part}")
    with pytest.raises(ModelFileError, match=rf"tensor {expert}\.{named} is missing"):
        HuggingFaceCheckpoint.open(tmp_path)
