"""Folders as GGUF files: names, rows and types as llama.cpp wants them, and the same logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import test_gpt_oss
import test_logits

from folder_writer import write_safetensors
from gguf_writer import Tensor, write_gguf
from heddle.config import EngineConfig
from heddle.errors import UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.quantise.export import ARCHITECTURES, exported_name
from heddle.extensions.quantise.export_rows import (
    exported_columns,
    exported_content,
    exported_parts,
    exported_shape,
)
from heddle.extensions.quantise.quantising import quantise_file
from heddle.extensions.reference.model import ReferenceModel
from heddle.weights.formats import open_checkpoint
from heddle.weights.gguf.file import GGUFFile
from heddle.weights.mix import Mix
from heddle.weights.tensor_types import TensorType
from models.tiny import MODELS, qwen3_5, qwen3_5_moe, qwen3_next
from models.tiny.base import BASE, TOKENS
from models.tiny.base_delta_net import TinyDeltaNet
from models.tiny.base_latent import TinyLatent
from models.tiny.base_mamba import TinyMamba
from models.tiny.base_scan import TinyScan
from models.tiny.lfm2 import TinyLfm2
from models.tiny.llama import TinyLlama

if TYPE_CHECKING:
    from pathlib import Path

    from models.tiny.base import TinyModel

INEXPRESSIBLE = ("gemma3-stretched", "lfm2-biased", "llama-longrope")
OLDER = ("deepseek_v2-lite", "qwen3_next-legacy")
"""Models whose tiny GGUF files are as older converters made them."""
HEADED = [
    replace(family.MODELS[0], name="head", mtp=True)
    for family in (qwen3_5, qwen3_5_moe, qwen3_next)
]
EXPORTED = [
    model
    for model in (*MODELS, *HEADED)
    if model.config()["model_type"] in ARCHITECTURES and str(model) not in INEXPRESSIBLE
]
REORDERED = ("granitemoehybrid", "qwen3_5_text", "qwen3_5_moe_text")
LAYOUTS = [
    model
    for model in EXPORTED
    if isinstance(model, TinyDeltaNet | TinyLatent | TinyLfm2 | TinyMamba | TinyScan)
]
"""Models with recurrent layers or latent attention."""
NOT_EXPORTED = ("vocab_size", "freq_base")
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


def executed_logits(path: Path) -> np.ndarray:
    """The CPU executor's logits after each of TOKENS.

    Rows of its matrices have the same bits in any order. The reference has no such promise: the
    BLAS under it computes some rows of a matrix in other ways than the rest.
    """
    with open_checkpoint(path) as checkpoint:
        executor = load(checkpoint, EngineConfig(slots=1, threads=1, context=len(TOKENS)))
        found = test_logits.last_logits(executor, TOKENS, range(1, len(TOKENS) + 1))
        executor.close()
    return found


@pytest.mark.parametrize("model", EXPORTED, ids=str)
def test_a_folder_becomes_a_file_of_the_same_model(model: TinyModel, tmp_path: Path) -> None:
    folder = model.write_folder(tmp_path / "folder")
    target = exported(folder)
    assert np.allclose(logits(target), logits(folder), rtol=0, atol=1e-4)
    with open_checkpoint(target) as file, open_checkpoint(folder) as checkpoint:
        assert file.tokenizer().pieces == checkpoint.tokenizer().pieces
        assert file.tokenizer().pre_tokenizer == "gpt-2"


@pytest.mark.parametrize("model", [one for one in EXPORTED if str(one) not in OLDER], ids=str)
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
            found, shape = file.tensors[name].shape, tensor.shape
            assert found[found[0] == 1 :] == shape[shape[0] == 1 :], name  # a row may be a matrix
            values, wanted = (
                np.frombuffer(raw, np.float32) for raw in (file.data(name), tensor.data)
            )
            assert np.allclose(values, wanted, rtol=1e-6), name


@pytest.mark.parametrize("model", [one for one in LAYOUTS if str(one) not in OLDER], ids=str)
def test_layouts_of_layers_are_written_as_llama_cpp_wants_them(
    model: TinyModel, tmp_path: Path
) -> None:
    """The metadata of the tiny models' GGUF files, and bits if no sum has another order."""
    folder = model.write_folder(tmp_path / "folder")
    target, expected = exported(folder), model.metadata()
    with GGUFFile.open(target) as file:
        for key, value in expected.items():
            known = key.startswith(("general.", f"{expected['general.architecture']}."))
            if not known or key.endswith(NOT_EXPORTED):
                continue
            assert np.asarray(file.metadata[key]) == pytest.approx(np.asarray(value)), key
    if model.architecture not in REORDERED:
        assert np.array_equal(executed_logits(target), executed_logits(folder))


@pytest.mark.parametrize(
    "model", [*(one for one in LAYOUTS if str(one) not in OLDER), OF["mamba-tied"]], ids=str
)
def test_shapes_stay_in_a_file_that_is_written_anew(model: TinyModel, tmp_path: Path) -> None:
    source, target = model.write(tmp_path / "old.gguf"), tmp_path / "new.gguf"
    quantise_file(source, target, Mix())
    with GGUFFile.open(source) as old, GGUFFile.open(target) as new:
        for name, tensor in old.tensors.items():
            found, shape = new.tensors[name].shape, tensor.shape
            assert found[found[0] == 1 :] == shape[shape[0] == 1 :], name  # a row may be a matrix
            assert np.array_equal(new.data(name), old.data(name)), name


def test_filters_and_vectors_of_recurrences_are_written_as_f32(tmp_path: Path) -> None:
    folder = OF["kimi_linear-linear"].write_folder(tmp_path / "folder", "BF16")
    with GGUFFile.open(exported(folder)) as file:
        types = {name: tensor.type for name, tensor in file.tensors.items()}
    for name in ("conv1d_q.weight", "conv1d_v.weight", "a", "dt.bias", "norm.weight"):
        assert types[f"blk.0.ssm_{name}"] is TensorType.F32
    assert types["blk.0.ssm_f_a.weight"] is types["blk.1.attn_k_b.weight"] is TensorType.BF16


def test_columns_and_their_importance_have_one_order(tmp_path: Path) -> None:
    name, folder = "layers.0.mixer.output.weight", tmp_path / "folder"
    with open_checkpoint(OF["qwen3_5_text-tied"].write_folder(folder)) as checkpoint:
        tensor = checkpoint.tensors[name]
        values = checkpoint.read(name).view(np.float32).reshape(tensor.shape)
        moved = exported_content(checkpoint, tensor).view(np.float32).reshape(tensor.shape)
        columns = exported_columns(checkpoint, name, values.astype(np.float64))
        assert np.array_equal(columns, moved)
        assert not np.array_equal(columns, values)
        assert exported_parts(checkpoint, name) == [name]
        packed = replace(tensor, type=TensorType.Q4_0)
        with pytest.raises(UnsupportedModelError, match=r"out_proj\.weight is quantised as Q4_0"):
            exported_shape(checkpoint, packed)


def test_importance_of_one_matrix_holds_for_both_that_gguf_has(tmp_path: Path) -> None:
    name, folder = "layers.0.mixer.qkvz.weight", tmp_path / "folder"
    with open_checkpoint(OF["qwen3_next-apart"].write_folder(folder)) as checkpoint:
        parts = exported_parts(checkpoint, name)
        assert [exported_name(checkpoint, part) for part in parts] == [
            "blk.0.attn_qkv.weight",
            "blk.0.attn_gate.weight",
        ]


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
        ("lfm2-biased", {}, r"conv\.conv\.bias cannot be written .* lfm2 have no biases"),
        (
            "qwen3_next-apart",
            {"layer_types": ["full_attention", *["linear_attention"] * 2, "full_attention"]},
            "layer_types .* every so many layers one has attention",
        ),
        ("qwen3_5_moe_text-tied", {"norm_topk_prob": False}, "norm_topk_prob False .* has True"),
        ("deepseek_v3-one group", {"rope_interleave": False}, "rope.interleaved False cannot be"),
        (
            "deepseek_v3-groups",
            {"rope_parameters": ROPE | {"rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 0.7}},
            "rope_type 'yarn' cannot be written .* both are equal",
        ),
        (
            "glm4_moe_lite-flash",
            {"mlp_layer_types": ["sparse", "dense", "sparse"]},
            "cannot be written as GGUF; there, all layers after the first ones have experts",
        ),
        (
            "kimi_linear-groups",
            {"linear_num_heads": 5},
            r"linear_attn_config\.num_heads 5 cannot .* both kinds of attention have 2 heads",
        ),
    ],
)
def test_what_gguf_cannot_express_is_refused(
    name: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = OF[name].write_folder(tmp_path / "folder", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        exported(folder)
    assert not folder.with_suffix(".gguf").exists()
