"""GPT-OSS as it is published: experts in MXFP4, in both formats, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from test_logits import last_logits

from folder_writer import write_raw_safetensors
from gguf_writer import Tensor, write_gguf
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.models.build import build
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType
from models.tiny.base import TOKENS
from models.tiny.gpt_oss import E2M1, MODELS, TinyGptOss

if TYPE_CHECKING:
    from pathlib import Path

MODEL = MODELS[0]
EXPONENT = 125  # of all blocks: 2 ** (125 - 127) is the 1/4 of the tiny models' values
QUANTISATION = {"quantization_config": {"quant_method": "mxfp4"}}


def codes(values: np.ndarray) -> np.ndarray:
    """E2M1 codes of values (..., columns) whose scale is 1/4."""
    steps = np.searchsorted(E2M1, np.abs(values) * 4)
    assert np.array_equal(E2M1[steps] / 4, np.abs(values))
    return (steps | np.where(np.signbit(values), 8, 0)).astype(np.uint8)


def write_folder(folder: Path, model: TinyGptOss, **parts: np.ndarray | None) -> Path:
    """Write the model with experts as blocks and scales. `parts` replace tensors of layer 0."""
    model.write_folder(folder, **QUANTISATION)
    stored: dict[str, np.ndarray] = {}
    for name, values in model.state().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = values
            continue
        pairs = codes(values.swapaxes(1, 2))
        blocks = (pairs[..., ::2] | pairs[..., 1::2] << 4).reshape(*pairs.shape[:2], -1, 16)
        stored[f"{name}_blocks"] = blocks
        stored[f"{name}_scales"] = np.full(blocks.shape[:-1], EXPONENT, np.uint8)
    for part, changed in parts.items():
        name = f"model.layers.0.mlp.experts.{part}"
        del stored[name]
        if changed is not None:
            stored[name] = changed
    header, data = {}, b""
    for name, values in stored.items():
        raw = np.ascontiguousarray(values).tobytes()
        dtype = "U8" if values.dtype == np.uint8 else "F32"
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    write_raw_safetensors(folder / "model.safetensors", header, data)
    return folder


def write_file(path: Path, model: TinyGptOss) -> Path:
    """Write the model as GGUF with experts in MXFP4."""

    def stored(tensor: Tensor) -> Tensor:
        if not tensor.name.endswith("_exps.weight"):
            return tensor
        values = codes(np.frombuffer(tensor.data, np.float32).reshape(*tensor.shape[:-1], -1, 32))
        blocks = np.full((*values.shape[:-1], 17), EXPONENT, np.uint8)
        blocks[..., 1:] = values[..., :16] | values[..., 16:] << 4
        return replace(tensor, data=blocks.tobytes(), type=TensorType.MXFP4)

    return write_gguf(path, model.metadata(), [stored(tensor) for tensor in model.tensors()])


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_experts_in_mxfp4_are_the_same_model(model: TinyGptOss, tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(write_folder(tmp_path / "folder", model)) as folder:
        tensor = folder.tensors["layers.0.mlp.experts.gate.weight"]
        assert (tensor.type, tensor.shape) == (TensorType.MXFP4, (model.experts, 64, 32))
        logits = ReferenceModel(folder).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=2e-5)
    file = GGUFCheckpoint.open(write_file(tmp_path / "tiny.gguf", model))
    for name, tensor in file.tensors.items():
        if "experts" in name and name.endswith("weight"):
            assert tensor.type == TensorType.MXFP4
    np.testing.assert_array_equal(ReferenceModel(file).logits(TOKENS), logits)


def test_both_formats_give_the_same_bits_on_a_cpu(tmp_path: Path) -> None:
    folder = HuggingFaceCheckpoint.open(write_folder(tmp_path / "folder", MODEL))
    file = GGUFCheckpoint.open(write_file(tmp_path / "tiny.gguf", MODEL))
    found = []
    for checkpoint in (folder, file):
        executor = load(checkpoint, EngineConfig(slots=1, threads=2, context=len(TOKENS)))
        found.append(last_logits(executor, TOKENS, [4, 5, len(TOKENS)]))
        executor.close()
    np.testing.assert_array_equal(found[0], found[1])
    expected = MODEL.expected_logits()[[3, 4, len(TOKENS) - 1]]
    distance = np.sqrt(np.mean((found[0] - expected) ** 2) / np.mean(expected**2))
    assert distance < 0.05  # int8 activations


def test_damaged_experts_are_named(tmp_path: Path) -> None:
    wrong = np.zeros((7, 128, 2, 16), np.uint8)
    cases: list[tuple[dict[str, np.ndarray | None], str]] = [
        ({"gate_up_proj_scales": None}, r"layers\.0\.mlp\.experts\.gate_up_proj_scales is missing"),
        ({"gate_up_proj_blocks": wrong}, r"gate_up_proj_blocks is U8 of shape \(7, 128, 2, 16\)"),
    ]
    for parts, message in cases:
        folder = write_folder(tmp_path / "folder", MODEL, **parts)
        with pytest.raises(ModelFileError, match=message):
            HuggingFaceCheckpoint.open(folder)


def test_other_constants_and_methods_are_refused(tmp_path: Path) -> None:
    folder = MODEL.write_folder(tmp_path, swiglu_limit=6.0)
    with (
        HuggingFaceCheckpoint.open(folder) as checkpoint,
        pytest.raises(UnsupportedModelError, match=r"swiglu_limit 6 is not supported; .*: 7"),
    ):
        build(checkpoint)
    (folder / "config.json").write_text(
        json.dumps(MODEL.config() | QUANTISATION | {"model_type": "llama"})
    )
    with pytest.raises(UnsupportedModelError, match="mxfp4"):
        HuggingFaceCheckpoint.open(folder)
