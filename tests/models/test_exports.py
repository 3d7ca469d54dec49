"""Folders as GGUF files: names, rows and types as llama.cpp wants them, and the same logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import test_gpt_oss

from folder_writer import write_safetensors
from gguf_writer import Tensor, write_gguf
from heddle.engine.quantising import quantise_file
from heddle.errors import UnsupportedModelError
from heddle.testing.reference_model import ReferenceModel
from heddle.weights.formats import open_checkpoint
from heddle.weights.gguf.export import ARCHITECTURES
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.mix import Mix
from heddle.weights.tensor_types import TensorType
from models.tiny import MODELS
from models.tiny.base import BASE, TOKENS
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel

INEXPRESSIBLE = ("gemma3-stretched", "llama-longrope")
EXPORTED = [
    model
    for model in MODELS
    if model.config()["model_type"] in ARCHITECTURES and str(model) not in INEXPRESSIBLE
]
PLAIN = TinyLlama("plain", heads=4, kv_heads=2, head_dim=16, tied=False)
OF = {str(model): model for model in MODELS}


def exported(folder: Path) -> Path:
    """The file of a folder, with tensors as they are stored."""
    quantise_file(folder, folder.with_suffix(".gguf"), Mix())
    return folder.with_suffix(".gguf")


def logits(path: Path) -> np.ndarray:
    """The reference's logits after each of TOKENS."""
    with open_checkpoint(path) as checkpoint:
        return ReferenceModel(checkpoint).logits(TOKENS)


@pytest.mark.parametrize("model", EXPORTED, ids=str)
def test_a_folder_becomes_a_file_of_the_same_model(model: TinyModel, tmp_path: Path) -> None:
    folder = model.write_folder(tmp_path / "folder")
    target = exported(folder)
    assert np.allclose(logits(target), logits(folder), rtol=0, atol=1e-4)
    with open_checkpoint(target) as file, open_checkpoint(folder) as checkpoint:
        assert file.tokenizer().pieces == checkpoint.tokenizer().pieces
        assert file.tokenizer().pre_tokenizer == "gpt-2"


@pytest.mark.parametrize("model", EXPORTED, ids=str)
def test_tensors_have_the_names_shapes_and_values_of_llama_cpp(
    model: TinyModel, tmp_path: Path
) -> None:
    """Those of the tiny models' GGUF files, which llama.cpp has computed."""
    expected = {tensor.name: tensor for tensor in model.tensors()}
    with GGUFFile.open(exported(model.write_folder(tmp_path / "folder"))) as file:
        more = set(file.tensors) - set(expected)
        assert set(expected) <= set(file.tensors)
        assert more <= {"output.weight"}
        for name, tensor in expected.items():
            found = file.tensors[name].shape
            assert found[found[0] == 1 :] == tensor.shape, name  # a row may be a matrix
            values, wanted = (
                np.frombuffer(raw, np.float32) for raw in (file.data(name), tensor.data)
            )
            assert np.allclose(values, wanted, rtol=1e-6), name


def test_vectors_biases_and_routers_are_written_as_f32(tmp_path: Path) -> None:
    """llama.cpp's kernels add no other biases of experts."""
    folder = OF["gpt_oss-sinks"].write_folder(tmp_path / "folder", "BF16")
    with GGUFFile.open(exported(folder)) as file:
        types = {name: tensor.type for name, tensor in file.tensors.items()}
    for part in ("gate", "up", "down"):
        assert types[f"blk.0.ffn_{part}_exps.bias"] is TensorType.F32
        assert types[f"blk.0.ffn_{part}_exps.weight"] is TensorType.BF16
    for name in ("attn_sinks.weight", "attn_norm.weight", "attn_q.bias", "ffn_gate_inp.weight"):
        assert types[f"blk.0.{name}"] is TensorType.F32


def test_fused_parts_are_in_order_whatever_the_order_of_the_folder(tmp_path: Path) -> None:
    model = OF["phi3-long"]
    folder = model.write_folder(tmp_path / "folder")
    expected, state = logits(folder), model.state()
    for name in [name for name in state if name.endswith("qkv_proj.weight")]:
        kv, fused = model.kv_width, state.pop(name)
        parts = dict(zip("qkv", np.split(fused, [model.q_width, model.q_width + kv]), strict=True))
        state |= {name.replace("qkv", part): parts[part] for part in "kqv"}
    write_safetensors(folder / "model.safetensors", state)
    assert np.allclose(logits(exported(folder)), expected, rtol=0, atol=1e-4)


def test_gate_and_up_of_experts_stay_one_tensor(tmp_path: Path) -> None:
    model = OF["qwen3_moe-untied"]
    tensors = {tensor.name: tensor for tensor in model.tensors()}
    for layer in range(model.layers):
        stacks = [tensors.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        values = [np.frombuffer(one.data, np.float32).reshape(one.shape) for one in stacks]
        pair = Tensor.of(f"blk.{layer}.ffn_gate_up_exps.weight", np.concatenate(values, axis=1))
        tensors[pair.name] = pair
    source = write_gguf(tmp_path / "old.gguf", model.metadata(), tensors.values())
    target = tmp_path / "new.gguf"
    quantise_file(source, target, Mix())
    with GGUFFile.open(source) as old, GGUFFile.open(target) as new:
        for name, tensor in old.tensors.items():
            assert new.tensors[name].shape == tensor.shape
            assert np.array_equal(new.data(name), old.data(name)), name


def test_experts_in_mxfp4_stay_as_they_are_stored(tmp_path: Path) -> None:
    model = test_gpt_oss.MODEL
    folder = test_gpt_oss.write_folder(tmp_path / "folder", model)
    stored, target = test_gpt_oss.write_file(tmp_path / "old.gguf", model), tmp_path / "new.gguf"
    written = quantise_file(folder, target, Mix.named("q8_0"))
    assert written.kept == "9 of type MXFP4"
    with GGUFFile.open(stored) as old, GGUFFile.open(target) as new:
        assert new.tensors["blk.0.attn_q.weight"].type is TensorType.Q8_0
        for part in ("gate", "up", "down"):
            name = f"blk.2.ffn_{part}_exps.weight"
            assert new.tensors[name].type is TensorType.MXFP4
            assert np.array_equal(new.data(name), old.data(name))


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    model = OF["glm4_moe-groups"]
    folder = model.write_folder(tmp_path / "folder")
    expected = logits(folder)
    more = {f"model.layers.{model.layers}.input_layernorm.weight": np.ones(model.width)}
    write_safetensors(folder / "model.safetensors", model.state() | more)
    target = exported(folder)
    with GGUFFile.open(target) as file:
        assert not any(name.startswith(f"blk.{model.layers}.") for name in file.tensors)
    assert np.array_equal(logits(target), expected)


ROPE = {"rope_theta": BASE, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    "changes",
    [
        {
            "rope_parameters": ROPE
            | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        },
        {"rope_parameters": ROPE | {"rope_type": "yarn", "attention_factor": 0.7}},
        {"partial_rotary_factor": 0.5},
    ],
    ids=["llama3", "yarn", "part of a head"],
)
def test_rope_is_written_in_full(changes: dict[str, object], tmp_path: Path) -> None:
    plain = logits(PLAIN.write_folder(tmp_path / "plain"))
    folder = PLAIN.write_folder(tmp_path / "folder", **changes)
    found = logits(folder)
    assert np.abs(found - plain).max() > 0.01
    assert np.allclose(logits(exported(folder)), found, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama-plain", {"rope_parameters": {"rope_type": "longrope"}}, "'longrope' cannot be"),
        (
            "llama-plain",
            {"rope_parameters": ROPE | {"rope_type": "yarn", "truncate": False}},
            r"rope_parameters\.truncate False cannot be written as GGUF; .* llama has True",
        ),
        (
            "llama-plain",
            {"sliding_window": 8, "model_type": "mistral"},
            "llama has no sliding window",
        ),
        (
            "gemma3-stretched",
            {},
            r"layer_types .* gemma3 has a window in all but every 6th",
        ),
        (
            "phi3-windowed",
            {"layer_types": ["sliding_attention", "full_attention"]},
            r"layer_types \[True, False\] .* phi3 has a window in all layers",
        ),
        ("gemma3-six to one", {"use_bidirectional_attention": True}, "encoders are not supported"),
        ("qwen3_moe-tied", {"norm_topk_prob": False}, "norm_topk_prob False .* qwen3moe has True"),
    ],
)
def test_what_gguf_cannot_express_is_refused(
    name: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = OF[name].write_folder(tmp_path / "folder", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        exported(folder)
    assert not folder.with_suffix(".gguf").exists()
