"""Values that the families of uneven heads read from a checkpoint; test_logits.py tests logits."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from window_pages import windows_of

from extensions.packed.packed_folder import (
    Float8,
    as_fp8_in_blocks,
    write_mixed,
    write_packed,
)
from folder_writer import write_safetensors
from gguf_writer import Tensor, write_gguf
from heddle import _native
from heddle.config import EngineConfig
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.executors.cpu.load import load
from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.uneven.attention import UnevenAttention
from heddle.models.build import build
from heddle.state import KvShape, Pages, Window, pages_for
from heddle.step import Chunk, StepPlan
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.tiny import afmoe, exaone_moe, laguna, mimo_v2, step3p5
from models.tiny.base import TOKENS

if TYPE_CHECKING:
    from pathlib import Path

    from extensions.packed.packed_folder import Storable
    from heddle.models.decoder import Decoder

(MIMO,), (STEP,), (AFMOE,) = mimo_v2.MODELS, step3p5.MODELS, afmoe.MODELS
LAGUNA = laguna.MODELS[0]


def built(folder: Path) -> Decoder:
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        return build(checkpoint)


def attentions(model: Decoder) -> list[UnevenAttention]:
    found = [layer.mixer for layer in model.layers]
    assert all(isinstance(one, UnevenAttention) for one in found)
    return found  # type: ignore[return-value]


def test_layers_keep_keys_and_values_of_their_own_number_of_heads(tmp_path: Path) -> None:
    model = build(MIMO.checkpoint(tmp_path))
    near, far = Window(5, KvShape(4, 48)), Pages(KvShape(2, 48))
    assert [kind for layer in range(4) for kind in model.state(layer)] == [far, near, near, far]
    assert (model.shape.kv_heads, model.shape.head_dim) == (4, 48)


ALL = (MIMO, STEP, *laguna.MODELS, *afmoe.MODELS)


@pytest.mark.parametrize("model", ALL, ids=str)
def test_a_file_and_a_folder_are_the_same_model(model: Any, tmp_path: Path) -> None:
    """But for the divisors of frequencies, which are a tensor of the file."""
    of_file = attentions(build(model.checkpoint(tmp_path)))
    of_folder = attentions(built(model.write_folder(tmp_path / "folder")))
    for one, other in zip(of_file, of_folder, strict=True):
        assert (one.spec, one.value_dim, one.gates) == (other.spec, other.value_dim, other.gates)
        assert one.value_scale == pytest.approx(other.value_scale)
        assert (one.rope is None) == (other.rope is None)
        if one.rope is not None and other.rope is not None:
            assert (one.rope.dim, one.rope.base) == (other.rope.dim, other.rope.base)


def test_folders_of_mimo_with_published_keys_are_the_same_model(tmp_path: Path) -> None:
    """The published folder has keys by kind of layer, and counts the token itself apart."""
    changes: dict[str, Any] = dict.fromkeys(("layer_types", "mlp_layer_types", "rope_parameters"))
    changes |= {
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "sliding_window": 4,
        "sliding_window_size": 4,
        "swa_num_key_value_heads": 4,
        "swa_num_attention_heads": 4,
        "swa_head_dim": 48,
        "swa_v_head_dim": 32,
        "rope_theta": 10_000.0,
        "swa_rope_theta": 100.0,
        "partial_rotary_factor": 0.334,
        "rms_norm_eps": None,
        "layernorm_epsilon": 1e-5,
        "add_swa_attention_sink_bias": True,
    }
    published = built(MIMO.write_folder(tmp_path / "published", **changes))
    assert published == built(MIMO.write_folder(tmp_path / "saved"))


def test_mimo_without_kinds_has_those_of_transformers(tmp_path: Path) -> None:
    folder = MIMO.write_folder(tmp_path, layer_types=None, num_hidden_layers=12)
    windows = [one.spec.window for one in attentions(built(folder))]
    assert windows == [0, 5, 5, 5, 5, 0, 5, 5, 5, 5, 5, 0]


def test_folders_of_step_as_transformers_writes_them_are_the_same_model(tmp_path: Path) -> None:
    attention = ("num_attention_groups", "attention_other_setting", "yarn_only_types")
    rotation = ("rope_theta", "rope_scaling", "partial_rotary_factors")
    experts = ("moe_num_experts", "moe_top_k", "moe_layers_enum", "moe_router_activation")
    changes: dict[str, Any] = dict.fromkeys((*attention, *rotation, *experts))
    text = STEP.text_config
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    local = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}
    changes |= {
        "num_key_value_heads": 2,
        "num_sliding_attention_heads": 6,
        "layer_types": text["layer_types"][:4],  # type: ignore[index]
        "rope_parameters": {
            "full_attention": rope | text["rope_scaling"],  # type: ignore[operator]
            "sliding_attention": local,
        },
        "n_routed_experts": 7,
        "num_experts_per_tok": 3,
    }
    assert built(STEP.write_folder(tmp_path / "saved", **changes)) == built(
        STEP.write_folder(tmp_path / "published")
    )


@pytest.mark.parametrize("key", ["swiglu_limits", "swiglu_limits_shared"])
def test_limits_of_step_change_its_logits(key: str, tmp_path: Path) -> None:
    """Else no test of logits would see whether they are applied."""
    with HuggingFaceCheckpoint.open(STEP.write_folder(tmp_path, **{key: None})) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    assert abs(logits - STEP.expected_logits()).max() > 1e-2


def test_only_leading_divisors_of_a_file_are_those_of_its_layers(tmp_path: Path) -> None:
    with STEP.checkpoint(tmp_path) as checkpoint:
        assert len(checkpoint.tensors["rope_divisors.weight"].shape) == 1
        ropes = [one.rope for one in attentions(build(checkpoint))]
    assert [one.dim for one in ropes if one is not None] == [16, 32, 32, 16]


def test_divisors_that_are_no_positive_numbers_are_refused(tmp_path: Path) -> None:
    wrong = Tensor.of("rope_freqs.weight", np.zeros(16, np.float32))
    tensors = [one for one in STEP.tensors() if one.name != wrong.name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(STEP), "tensors", lambda _: [*tensors, wrong])
        checkpoint = STEP.checkpoint(tmp_path)
    with pytest.raises(ModelFileError, match="must hold positive numbers, got 0"):
        ReferenceModel(checkpoint)


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"v_head_dim": 64}, UnsupportedModelError, "v_head_dim 64 is not supported: values wider"),
        ({"num_key_value_heads": 3}, ModelFileError, "is 3, which does not divide the 4 query"),
        ({"swa_num_key_value_heads": 3}, ModelFileError, "the 4 query heads of layer 1"),
        ({"layer_types": ["full_attention"]}, ModelFileError, "must have 4 entries"),
        ({"layer_types": ["linear_attention"] * 4}, UnsupportedModelError, "'linear_attention'"),
        ({"layer_types": None, "hybrid_layer_pattern": [1]}, ModelFileError, "have 4 entries"),
        ({"v_head_dim": "wide"}, ModelFileError, "v_head_dim must be a positive whole number"),
        ({"num_attention_heads": 1 << 30}, ModelFileError, "num_attention_heads is 1073741824"),
        ({"swa_head_dim": 1 << 30}, ModelFileError, "head_dim is 1073741824, but the tensors"),
        ({"partial_rotary_factor": 0.32}, ModelFileError, "must be even"),
        ({"scoring_func": "softplus"}, UnsupportedModelError, "'softplus' is not supported"),
        ({"num_hidden_layers": "four"}, ModelFileError, "num_hidden_layers must be a positive"),
        ({"attention_value_scale": -1}, ModelFileError, "attention_value_scale must be a positive"),
    ],
)
def test_a_wrong_configuration_of_mimo_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=problem):
        built(MIMO.write_folder(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"swiglu_limits": [9.0] * 5}, UnsupportedModelError, "swiglu_limits 9.0 is not supported"),
        ({"swiglu_limits_shared": [[1]] * 4}, UnsupportedModelError, r"\[1\] is not supported"),
        ({"swiglu_limits": [7.0]}, ModelFileError, "swiglu_limits must have 4 entries"),
        ({"use_head_wise_attn_gate": False}, UnsupportedModelError, "use_head_wise_attn_gate"),
        ({"yarn_only_types": ["sliding_attention"]}, UnsupportedModelError, "yarn_only_types"),
        ({"use_rope_layers": [True, False, True, True]}, UnsupportedModelError, "use_rope_layers"),
        ({"rope_theta": [1e4, 1e3, 1e2, 1e4]}, UnsupportedModelError, "rope_theta .* of a kind"),
        ({"layer_types": ["full_attention"]}, ModelFileError, "must have 4 entries"),
        ({"num_attention_heads": 5}, ModelFileError, "the 5 query heads of layer 0"),
        ({"attention_other_setting": {"num_attention_heads": 1 << 30}}, ModelFileError, "allow at"),
        ({"partial_rotary_factors": [0.6] * 4}, ModelFileError, "must be even and at most 32"),
        ({"hidden_act": "gelu_new"}, UnsupportedModelError, "'gelu' is not supported"),
    ],
)
def test_a_wrong_configuration_of_step_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=problem):
        built(STEP.write_folder(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"step35.attention.head_count": np.array([4, 6], np.int32)}, "must have 4 entries"),
        ({"step35.swiglu_clamp_exp": np.array([7], np.float32)}, "must have 4 entries"),
        ({"step35.attention.head_count": np.full(5, 1 << 30, np.int32)}, "the tensors of the file"),
        ({"step35.rope.dimension_count": 34}, "must be even and at most 32"),
    ],
)
def test_a_wrong_file_of_step_is_refused_by_name(
    changes: dict[str, object], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        build(STEP.checkpoint(tmp_path, changes))


def test_folders_of_laguna_without_rotations_have_those_of_transformers(tmp_path: Path) -> None:
    model = built(LAGUNA.write_folder(tmp_path, rope_parameters=None))
    found = [one.rope for one in attentions(model)[:2]]
    assert [(one.dim, one.base) for one in found if one] == [(16, 500_000.0), (32, 10_000.0)]


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"gating": "per-tensor"}, UnsupportedModelError, "gating 'per-tensor' is not supported"),
        ({"gating": "per-element"}, ModelFileError, r"g_proj.* has shape"),
        ({"moe_apply_router_weight_on_input": True}, UnsupportedModelError, "router_weight_on"),
        ({"moe_router_logit_softcapping": 3.0}, UnsupportedModelError, "logit_softcapping 3.0"),
        ({"num_attention_heads_per_layer": [4]}, ModelFileError, "must have 5 entries"),
        ({"num_attention_heads_per_layer": [3] * 5}, ModelFileError, "the 3 query heads"),
        ({"layer_types": ["full_attention"] * 4}, ModelFileError, "must have 5 entries"),
    ],
)
def test_a_wrong_configuration_of_laguna_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    folder = LAGUNA.write_folder(tmp_path, **changes)
    with pytest.raises(error, match=problem), HuggingFaceCheckpoint.open(folder) as checkpoint:
        ReferenceModel(checkpoint)


def test_layers_of_laguna_have_windows_by_the_period_of_a_file(tmp_path: Path) -> None:
    changes: dict[str, object] = {"laguna.attention.sliding_window_pattern": 2}
    model = build(LAGUNA.checkpoint(tmp_path, changes))
    assert [one.spec.window for one in attentions(model)] == [0, 5, 0, 5, 0]


def test_folders_of_afmoe_may_have_no_factor_on_embeddings_and_a_period(tmp_path: Path) -> None:
    changes = {"mup_enabled": False, "layer_types": None, "global_attn_every_n_layers": 2}
    model = built(AFMOE.write_folder(tmp_path, **changes))
    assert model.embedding_scale == 1.0
    assert [one.spec.window for one in attentions(model)] == [5, 0, 5, 0]


@pytest.mark.parametrize("model", [*ALL, *exaone_moe.MODELS], ids=str)
@pytest.mark.parametrize("layers", ["four", 4.0])
def test_a_number_of_layers_that_is_none_is_refused(
    model: Any, layers: object, tmp_path: Path
) -> None:
    name = f"{model.gguf_architecture or model.architecture}.block_count"
    with pytest.raises(ModelFileError, match="block_count must be a positive whole number"):
        build(model.checkpoint(tmp_path, {name: layers}))


@pytest.mark.parametrize("model", [MIMO, STEP], ids=str)
def test_the_log_says_that_prediction_heads_are_not_used(
    model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "heddle"):
        build(model.checkpoint(tmp_path))
    assert "the model's 1 prediction heads are not used" in caplog.text


def test_layers_of_steps_prediction_heads_are_no_layers_of_the_model(tmp_path: Path) -> None:
    """The published folder numbers them on behind the last layer."""
    state = STEP.stored()
    head = {
        name.replace("layers.1.", "layers.4."): values
        for name, values in state.items()
        if name.startswith("model.layers.1.")
    }
    head["model.layers.4.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    folder = STEP.write_folder(tmp_path)
    write_safetensors(folder / "model.safetensors", state | head)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        model = build(checkpoint)
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    assert (len(model.layers), model.head) == (4, None)
    np.testing.assert_allclose(logits, STEP.expected_logits(), rtol=0, atol=4e-5)


def test_the_log_names_tensors_of_mimos_prediction_heads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = MIMO.write_folder(tmp_path)
    heads = {"model.mtp.layers.0.eh_proj.weight": np.zeros((32, 64), np.float32)}
    write_safetensors(folder / "model.safetensors", MIMO.stored() | heads)
    with caplog.at_level(logging.INFO, "heddle"), HuggingFaceCheckpoint.open(folder):
        pass
    assert "1 tensors beside the text model are not used: mtp" in caplog.text


@pytest.mark.parametrize("model", [MIMO, STEP], ids=str)
def test_joined_matrices_of_a_file_have_rows_by_layer(model: Any, tmp_path: Path) -> None:
    """llama.cpp's converter may join them. So it does for MiMo V2.5, of the same architecture."""
    tensors = {one.name: one for one in model.tensors()}
    for layer in range(model.layers):
        parts = [tensors.pop(f"blk.{layer}.attn_{part}.weight") for part in "qkv"]
        rows = [np.frombuffer(one.data, np.float32).reshape(one.shape) for one in parts]
        joined = Tensor.of(f"blk.{layer}.attn_qkv.weight", np.concatenate(rows))
        tensors[joined.name] = joined
    head = f"blk.{model.layers}.attn_qkv.weight"  # a layer with a window
    tensors[head] = replace(tensors["blk.1.attn_qkv.weight"], name=head)
    path = write_gguf(tmp_path / "joined.gguf", model.metadata(), tensors.values())
    with GGUFCheckpoint.open(path) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)
    tensors[head] = Tensor.of(head, np.zeros((8, model.width), np.float32))
    path = write_gguf(tmp_path / "wrong.gguf", model.metadata(), tensors.values())
    with pytest.raises(ModelFileError, match="has 8 rows; the hyperparameters require"):
        GGUFCheckpoint.open(path)


BLOCKS = {"quant_method": "fp8", "weight_block_size": [24, 16]}


def test_mimo_in_blocks_of_fp8_computes_what_its_values_do(tmp_path: Path) -> None:
    packer = partial(as_fp8_in_blocks, height=24, width=16)
    meant = write_packed(MIMO, tmp_path / "fp8", BLOCKS, packer)
    assert_same_logits(MIMO, tmp_path, meant)


def test_stacks_of_experts_of_step_in_blocks_of_fp8_compute_what_their_values_do(
    tmp_path: Path,
) -> None:
    """The published folder has a tensor with the scales of all experts of a stack."""
    tensors: dict[str, Storable] = dict(STEP.stored())
    meant = {}
    for name, values in STEP.stored().items():
        if values.ndim != 3:
            continue
        codes, scales, matrices = [], [], []
        for expert, matrix in enumerate(values):
            parts, values_meant = as_fp8_in_blocks(matrix, 24, 16)
            code, scale, factor = parts["weight"], parts["weight_scale_inv"], 2 ** (expert % 2)
            assert isinstance(code, Float8)
            assert isinstance(scale, np.ndarray)
            codes.append(code.codes)
            scales.append(scale * factor)
            matrices.append(values_meant * factor)
        tensors |= {name: Float8(np.stack(codes)), f"{name}_scale_inv": np.stack(scales)}
        meant[name] = np.stack(matrices)
    assert len(meant) == 9
    STEP.write_folder(tmp_path / "fp8")
    config = STEP.config() | {"quantization_config": BLOCKS}
    (tmp_path / "fp8" / "config.json").write_text(json.dumps(config))
    write_mixed(tmp_path / "fp8" / "model.safetensors", tensors)
    assert_same_logits(STEP, tmp_path, meant)
    name = next(iter(meant))
    write_mixed(
        tmp_path / "fp8" / "model.safetensors",
        tensors | {f"{name}_scale_inv": np.ones((7, 1, 1), np.float32)},
    )
    with pytest.raises(ModelFileError, match="weight_scale_inv"):
        HuggingFaceCheckpoint.open(tmp_path / "fp8")


def assert_same_logits(model: Any, folder: Path, meant: dict[str, np.ndarray]) -> None:
    """The folder "fp8" computes the same as one in float32 with the values `meant`."""
    model.write_folder(folder / "floats")
    write_safetensors(folder / "floats" / "model.safetensors", model.stored() | meant)
    found = []
    for name in ("fp8", "floats"):
        with HuggingFaceCheckpoint.open(folder / name) as checkpoint:
            found.append(ReferenceModel(checkpoint).logits(TOKENS))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("model", [MIMO, STEP, LAGUNA], ids=str)
def test_bits_are_the_same_at_every_level_and_thread_count(model: Any, tmp_path: Path) -> None:
    """With quantised matrices. Beyond 256 positions, threads split attention of a single token."""
    context = 320
    checkpoint = replace(model, context=context).checkpoint(tmp_path)
    tokens = [(7 * i * i + 3 * i) % 31 for i in range(context)]
    ends = [300, 301, 302]

    def logits(isa: str, threads: int, parts: list[int]) -> np.ndarray:
        config = EngineConfig(
            slots=1, threads=threads, isa=isa, batch_tokens=context, quantize="q8_0"
        )
        executor = load(checkpoint, config)
        rows, start = {}, 0
        for end in parts:
            pages, windows = range(pages_for(end)), windows_of(executor.memory, start, end)
            chunk = Chunk(0, start, tokens[start:end], pages, sample=True, windows=windows)
            rows[end] = executor.logits(StepPlan(bindings=(), chunks=(chunk,)))
            start = end
        executor.close()
        return np.concatenate([rows[end] for end in ends])

    expected = logits("portable", 1, ends)
    assert np.isfinite(expected).all()
    for isa in _native.isa_levels():
        assert np.array_equal(logits(isa, 3, [100, 290, *ends]), expected), isa
