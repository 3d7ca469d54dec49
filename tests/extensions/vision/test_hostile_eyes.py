"""Eyes whose files are damaged or hostile: typed errors, and no work of the size they claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from seen import eyes_in
from tiny_eyes import (
    GEMMA3,
    GEMMA4,
    GEMMA4_SMALL,
    IDEFICS3,
    INTERNVL,
    LLAVA,
    PIXTRAL,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_VL,
)
from tiny_mmproj import metadata, write_mmproj
from tiny_mmproj import tensors as mmproj_tensors

from gguf_writer import Tensor, write_gguf
from heddle.errors import HeddleError, ModelFileError, UnsupportedModelError
from heddle.extensions.vision.files import eyes_of
from heddle.extensions.vision.gguf_eyes import gguf_eyes
from heddle.extensions.vision.kinds import kind_of
from heddle.weights.gguf.checkpoint import GGUFCheckpoint
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

VISION = "model.vision_model."


def opened(folder: Path, model: TinyEyes, **changes: object) -> None:
    """Open the eyes of a folder; keys of `vision_config` begin with `vision__`."""
    vision = {
        key.removeprefix("vision__"): value
        for key, value in changes.items()
        if key.startswith("vision__")
    }
    whole = {key: value for key, value in changes.items() if not key.startswith("vision__")}
    path = model.write_folder(folder, vision_config=model.vision | vision, **whole)
    with HuggingFaceCheckpoint.open(path) as checkpoint:
        assert eyes_of(checkpoint) is not None


@pytest.mark.parametrize(
    ("model", "changes", "problem"),
    [
        (IDEFICS3, {"vision__num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but"),
        (IDEFICS3, {"vision__num_hidden_layers": -1}, "num_hidden_layers must be a positive"),
        (IDEFICS3, {"vision__num_hidden_layers": "2"}, "num_hidden_layers must be a positive"),
        (IDEFICS3, {"vision__hidden_size": 10**12}, "hidden_size is 10+, but at most"),
        (IDEFICS3, {"vision__num_attention_heads": 10**9}, "num_attention_heads is 10+, but"),
        (IDEFICS3, {"vision__patch_size": 4096}, "patch_size is 4096, but at most 256"),
        (IDEFICS3, {"vision__image_size": [16, 24]}, r"image_size must be a square"),
        (IDEFICS3, {"vision__image_size": 1 << 20}, r"image_size is 1048576, but at most 16384"),
        (IDEFICS3, {"scale_factor": 10**6}, r"merge is 1000000, but at most 32"),
        (LLAVA, {"vision_feature_layer": -9}, "vision_feature_layer -9 names a layer that the"),
        (LLAVA, {"vision_feature_layer": ["x"]}, "vision_feature_layer .'x'. names a layer"),
        (GEMMA3, {"mm_tokens_per_image": 5}, "mm_tokens_per_image must be a square number, got 5"),
        (INTERNVL, {"downsample_ratio": 0}, "downsample_ratio must be 1 over a whole number"),
        (INTERNVL, {"downsample_ratio": 0.3}, "downsample_ratio must be 1 over a whole number"),
        (INTERNVL, {"downsample_ratio": 1e-300}, "downsample_ratio must be 1 over a whole number"),
        (INTERNVL, {"downsample_ratio": 1 / 64}, "merge is 64, but at most 32"),
        (QWEN2_5_VL, {"vision__fullatt_block_indexes": [2]}, "names layer 2, but at most 1"),
        (QWEN2_5_VL, {"vision__fullatt_block_indexes": 1}, "must be a list of layers"),
        (QWEN3_VL, {"vision__deepstack_visual_indexes": [0] * 9}, "must be a list of layers"),
        (QWEN3_VL, {"vision__deepstack_visual_indexes": [True]}, "names layer True"),
        (QWEN3_VL, {"vision__num_position_embeddings": -4}, "must be a square number, got -4"),
    ],
)
def test_a_value_of_a_folder_that_cannot_be_right(
    tmp_path: Path, model: TinyEyes, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        opened(tmp_path, model, **changes)


@pytest.mark.parametrize("changes", [{"vision__num_key_value_heads": 1}, {"vision__head_dim": 24}])
def test_heads_of_gemma_4_that_are_not_supported(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(UnsupportedModelError, match="as many heads of keys, and a width"):
        opened(tmp_path, GEMMA4, **changes)


@pytest.mark.parametrize(
    ("model", "label", "values", "problem"),
    [
        (GEMMA4_SMALL, "encoder.layers.1.mlp.up_proj.input_min", np.array(2.0), "is 2.0; it must"),
        (GEMMA4_SMALL, "encoder.layers.1.mlp.up_proj.input_max", np.array(np.inf), "both finite"),
        (GEMMA4, "std_bias", np.ones(12), r"as many elements as .*std_scale"),
        (GEMMA4, "encoder.layers.0.self_attn.q_norm.weight", np.ones(10), "rows of heads of 10"),
        (GEMMA4, "patch_embedder.position_embedding_table", np.ones((3, 5, 24)), "as many rows"),
    ],
)
def test_a_tensor_of_gemma_4_that_cannot_be_right(
    tmp_path: Path, model: TinyEyes, label: str, values: np.ndarray, problem: str
) -> None:
    state = model.eyes_state() | {f"model.vision_tower.{label}": values.astype(np.float32)}
    changed = replace(model, eyes=lambda random: state)
    with (
        pytest.raises(ModelFileError, match=problem),
        eyes_in(tmp_path, changed) as eyes,
    ):
        kind_of(eyes)


def test_matrices_without_finite_limits_are_not_held(tmp_path: Path) -> None:
    state = {
        name: np.array(-np.inf if "_min" in name else np.inf, np.float32)
        if name.endswith(("_min", "_max"))
        else one
        for name, one in GEMMA4_SMALL.eyes_state().items()
    }
    with eyes_in(tmp_path, replace(GEMMA4_SMALL, eyes=lambda random: state)) as eyes:
        assert kind_of(eyes).tower.limits == {}


def test_an_activation_that_is_not_supported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"activation 'mish' of the eyes is not"):
        opened(tmp_path, IDEFICS3, vision__hidden_act="mish")


@pytest.mark.parametrize(
    ("label", "values", "problem"),
    [
        ("embeddings.patch_embedding.weight", np.ones((24, 1, 4, 4)), "must have three channels"),
        ("post_layernorm.weight", np.ones((0, 4)), "must have elements along one axis"),
    ],
)
def test_a_tensor_of_a_folder_with_other_axes(
    tmp_path: Path, label: str, values: np.ndarray, problem: str
) -> None:
    state = IDEFICS3.eyes_state() | {f"{VISION}{label}": values.astype(np.float32)}
    changed = replace(IDEFICS3, eyes=lambda random: state)
    with pytest.raises(ModelFileError, match=problem):
        opened(tmp_path, changed)


def test_a_projection_that_is_missing_or_of_another_model(tmp_path: Path) -> None:
    label = "model.connector.modality_projection.proj.weight"
    state = IDEFICS3.eyes_state()
    values = state.pop(label)
    without = replace(IDEFICS3, eyes=lambda random: state)
    with pytest.raises(ModelFileError, match=r"tensor .*modality_projection.* is missing"):
        opened(tmp_path / "without", without)
    other = replace(IDEFICS3, eyes=lambda random: state | {label: values[:16]})
    with pytest.raises(ModelFileError, match=r"rows of 16 elements, but the model .* width of 32"):
        opened(tmp_path / "other", other)


def test_a_folder_without_eyes_or_with_eyes_of_another_kind_has_none(tmp_path: Path) -> None:
    alone = replace(IDEFICS3, eyes=lambda random: {})
    for model, vision in ((alone, IDEFICS3.vision), (LLAVA, LLAVA.vision | {"model_type": "x"})):
        path = model.write_folder(tmp_path / model.name, vision_config=vision)
        with HuggingFaceCheckpoint.open(path) as checkpoint:
            assert eyes_of(checkpoint) is None
    path = IDEFICS3.text.write_folder(tmp_path / "text")
    with HuggingFaceCheckpoint.open(path) as checkpoint:
        assert eyes_of(checkpoint) is None


def test_tensors_of_types_without_values_are_refused(tmp_path: Path) -> None:
    state = IDEFICS3.eyes_state()
    state[f"{VISION}post_layernorm.weight"] = np.ones(24, np.int64)
    with pytest.raises(UnsupportedModelError, match=r"post_layernorm.weight of dtype I64"):
        opened(tmp_path, replace(IDEFICS3, eyes=lambda random: state))


@pytest.mark.parametrize(
    ("model", "changes", "problem"),
    [
        (IDEFICS3, {"clip.vision.block_count": 1 << 31}, "block_count is 2147483648, but at most"),
        (IDEFICS3, {"clip.vision.block_count": None}, "block_count must be a positive whole"),
        (IDEFICS3, {"clip.vision.patch_size": 1 << 20}, "patch_size is 1048576, but at most 256"),
        (IDEFICS3, {"clip.vision.embedding_length": "x"}, "embedding_length must be a positive"),
        (IDEFICS3, {"clip.projector_type": 7}, "projector_type 7 is not supported"),
        (PIXTRAL, {"clip.vision.attention.head_count": 5}, "24 rows, which 5 heads do not share"),
        (PIXTRAL, {"clip.vision.attention.head_count": 0}, "head_count must be a positive"),
        (QWEN2_5_VL, {"clip.vision.n_wa_pattern": 0}, ""),
        (QWEN2_5_VL, {"clip.vision.n_wa_pattern": 1 << 30}, ""),
        (
            QWEN3_VL,
            {"clip.vision.is_deepstack_layers": np.array([True] * 40)},
            "deepstack_layers must be a list of layers",
        ),
        (
            QWEN3_VL,
            {"clip.vision.is_deepstack_layers": np.array([False, False, True])},
            "deepstack_layers names layer 2",
        ),
    ],
)
def test_a_value_of_a_file_that_cannot_be_right(
    tmp_path: Path, model: TinyEyes, changes: dict[str, object], problem: str
) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", model, **changes)
    with GGUFCheckpoint.open(model.text.write(tmp_path / "text.gguf")) as text:
        if not problem:  # who needs the value asks for it
            with gguf_eyes(mmproj, text) as eyes:
                assert eyes.hyperparameters.get("full_layers") is None
            return
        with pytest.raises(HeddleError, match=problem):
            gguf_eyes(mmproj, text)


def test_frames_with_other_sizes(tmp_path: Path) -> None:
    tensors = [
        one if one.name != "v.patch_embd.weight.1" else replace(one, shape=(32, 3, 8, 2))
        for one in mmproj_tensors(QWEN2_VL)
    ]
    mmproj = write_gguf(tmp_path / "mmproj.gguf", metadata(QWEN2_VL), tensors)
    with (
        GGUFCheckpoint.open(QWEN2_VL.text.write(tmp_path / "text.gguf")) as text,
        pytest.raises(ModelFileError, match=r"patch_embd.weight.1 has shape"),
    ):
        gguf_eyes(mmproj, text)


def test_matrices_of_older_files_may_have_each_others_names(tmp_path: Path) -> None:
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    tensors = []
    for one in mmproj_tensors(IDEFICS3):
        part = next((part for part in names if f".{part}." in one.name), "")
        tensors.append(replace(one, name=one.name.replace(part, names[part])) if part else one)
    right = write_mmproj(tmp_path / "right.gguf", IDEFICS3)
    older = write_gguf(tmp_path / "older.gguf", metadata(IDEFICS3), tensors)
    with (
        GGUFCheckpoint.open(IDEFICS3.text.write(tmp_path / "text.gguf")) as text,
        gguf_eyes(right, text) as expected,
        gguf_eyes(older, text) as eyes,
    ):
        assert eyes.hyperparameters.integer("mlp_width") == 36
        for name in expected.tensors:
            np.testing.assert_array_equal(eyes.read(name), expected.read(name), err_msg=name)


def test_older_files_of_qwen_have_positions_that_mean_nothing(tmp_path: Path) -> None:
    zeros = Tensor.of("v.position_embd.weight", np.zeros((10, 10), np.float32))
    tensors = [*mmproj_tensors(QWEN2_VL), zeros]
    mmproj = write_gguf(tmp_path / "mmproj.gguf", metadata(QWEN2_VL), tensors)
    with (
        GGUFCheckpoint.open(QWEN2_VL.text.write(tmp_path / "text.gguf")) as text,
        gguf_eyes(mmproj, text) as eyes,
    ):
        assert "positions.weight" not in eyes.tensors
