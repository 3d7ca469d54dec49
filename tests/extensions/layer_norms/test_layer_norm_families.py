"""Refusals of families with layer norms, and the places of their windows and positions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from folder_writer import write_safetensors
from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.reference.model import ReferenceModel
from heddle.extensions.reference.ops import ReferenceLoader
from heddle.models.build import build
from heddle.models.feed_forward import MLP
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from models.attentions import attentions
from models.tiny import (
    bloom,
    cohere,
    falcon,
    gpt2,
    gpt_neox,
    opt,
    phi,
    phimoe,
    stablelm,
    starcoder2,
)
from models.tiny.base import TOKENS

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.models.decoder import Decoder
    from models.tiny.base import TinyModel


def decoder(model: TinyModel, folder: Path, **changes: object) -> Decoder:
    return build(HuggingFaceCheckpoint.open(model.write_folder(folder, **changes)), 0)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (cohere.MODELS[0], "use_qk_norm"),
        (stablelm.MODELS[0], "qk_layernorm"),
        (phi.MODELS[0], "qk_layernorm"),
    ],
    ids=str,
)
def test_layer_norms_of_queries_and_keys_are_refused(
    model: TinyModel, key: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{key} True is not supported"):
        decoder(model, tmp_path, **{key: True})


@pytest.mark.parametrize("scale", [0.0, -1.0, "half"])
def test_a_factor_on_logits_that_makes_no_sense_is_refused(scale: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="logit"):
        decoder(cohere.MODELS[0], tmp_path, logit_scale=scale)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (gpt2.MODELS[0], "scale_attn_by_inverse_layer_idx", True),
        (gpt2.MODELS[0], "scale_attn_weights", False),
        (gpt2.MODELS[0], "add_cross_attention", True),
        (gpt2.MODELS[0], "activation_function", "quick_gelu"),
        (opt.FOLDERS[0], "do_layer_norm_before", False),
        (opt.FOLDERS[0], "word_embed_proj_dim", 16),
        (bloom.MODELS[0], "apply_residual_connection_post_layernorm", True),
        (falcon.MODELS[0], "alibi", True),
        (falcon.MODELS[0], "parallel_attn", False),
        (gpt_neox.MODELS[0], "hidden_act", "quick_gelu"),
    ],
    ids=str,
)
def test_what_no_checkpoint_of_a_first_family_has_is_refused_by_name(
    model: TinyModel, key: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{key} {value!r} is not supported"):
        decoder(model, tmp_path, **{key: value})


@pytest.mark.parametrize("model", [gpt2.MODELS[0], bloom.MODELS[0]], ids=str)
def test_tensors_may_lack_the_prefix_of_the_whole_model(model: TinyModel, tmp_path: Path) -> None:
    """So are those of `openai-community/gpt2` and `bigscience/bloom-560m`."""
    folder = model.write_folder(tmp_path)
    state = {model.folder_name(name): values for name, values in model.stored().items()}
    bare = {name.removeprefix("transformer."): values for name, values in state.items()}
    write_safetensors(folder / "model.safetensors", bare)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        logits = ReferenceModel(checkpoint).logits(TOKENS)
    np.testing.assert_allclose(logits, model.expected_logits(), rtol=0, atol=4e-5)


def test_bloom_may_call_its_heads_otherwise(tmp_path: Path) -> None:
    folder = bloom.MODELS[0].write_folder(tmp_path, num_attention_heads=3)
    config = json.loads((folder / "config.json").read_text())
    del config["n_head"]
    (folder / "config.json").write_text(json.dumps(config))
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert attentions(build(checkpoint))[0].spec.heads == 3


def test_joined_heads_that_config_json_contradicts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"query_key_value\.weight has shape .* do not divide"):
        decoder(gpt_neox.MODELS[0], tmp_path, num_attention_heads=7)
    with pytest.raises(ModelFileError, match="num_attention_heads must be"):
        decoder(falcon.MODELS[0], tmp_path, num_attention_heads=0)


def test_the_activation_of_gpt2_is_that_of_config_json(tmp_path: Path) -> None:
    found = decoder(gpt2.MODELS[0], tmp_path, activation_function="relu").layers[0].mlp
    assert isinstance(found, MLP)
    assert found.activation == "relu"


def test_a_table_of_positions_must_have_a_row_for_each_position(tmp_path: Path) -> None:
    checkpoint = HuggingFaceCheckpoint.open(gpt2.MODELS[0].write_folder(tmp_path, n_positions=63))
    with pytest.raises(ModelFileError, match=r"transformer\.wpe\.weight has shape \(64, 48\)"):
        build(checkpoint, 0).load(ReferenceLoader(checkpoint))


def test_a_window_of_starcoder2_is_in_all_layers(tmp_path: Path) -> None:
    model = decoder(starcoder2.MODELS[0], tmp_path, sliding_window=5)
    assert [attention.spec.window for attention in attentions(model)] == [5, 5]


def test_layers_of_cohere2_without_a_window_have_no_positions(tmp_path: Path) -> None:
    model = decoder(cohere.MODELS[1], tmp_path)
    found = [(one.spec.window, one.rope is not None) for one in attentions(model)]
    assert found == [(5, True), (5, True), (5, True), (0, False), (5, True)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"router_jitter_noise": 0.1}, r"router_jitter_noise 0\.1 is not supported"),
        ({"rope_scaling": {"short_mscale": 1.0, "long_mscale": 1.2}}, "they must be equal"),
    ],
)
def test_numbers_of_phimoe_that_no_model_has_are_refused(
    changes: dict[str, object], problem: str, tmp_path: Path
) -> None:
    folder = phimoe.MODELS[0].write_folder(tmp_path, rope_parameters=None, **changes)
    with pytest.raises(UnsupportedModelError, match=problem):
        HuggingFaceCheckpoint.open(folder)


@pytest.mark.parametrize(("context", "original", "expected"), [(131_072, 4096, 1.2431), (64, 8, 2)])
def test_gguf_files_of_phi_3_5_moe_have_the_factor_of_its_folder(
    context: int, original: int, expected: float, tmp_path: Path
) -> None:
    changes: dict[str, object] = {
        "phimoe.context_length": context,
        "phimoe.rope.scaling.original_context_length": original,
        "phimoe.rope.scaling.attn_factor": 2.0,
    }
    rope = attentions(build(phimoe.MODELS[1].checkpoint(tmp_path, changes), 64))[0].rope
    assert rope is not None
    assert rope.scale == pytest.approx(expected, abs=1e-4)
    assert rope.divisors == ("rope_divisors_short" if original == 4096 else "rope_divisors_long")


@pytest.mark.parametrize(("window", "expected"), [(63, 63), (64, 0)])
def test_a_window_as_wide_as_the_context_of_phimoe_is_none(
    window: int, expected: int, tmp_path: Path
) -> None:
    folder = phimoe.MODELS[0].write_folder(tmp_path, sliding_window=window)
    with HuggingFaceCheckpoint.open(folder) as checkpoint:
        assert [one.spec.window for one in attentions(build(checkpoint))] == [expected] * 2
