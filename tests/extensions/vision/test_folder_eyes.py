"""Eyes of Hugging Face folders under canonical names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_eyes import GEMMA3, IDEFICS3, INTERNVL, LFM2_VL, LLAVA_NEXT, MODELS, QWEN2_VL

from heddle.errors import ModelFileError
from heddle.extensions.vision.files import eyes_of
from heddle.weights.huggingface.checkpoint import HuggingFaceCheckpoint
from heddle.weights.tensor_types import TensorType, dequantize

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

    from heddle.extensions.vision.eyes import EyesCheckpoint
    from heddle.weights.checkpoint import Checkpoint


def tensor(eyes: EyesCheckpoint, name: str) -> np.ndarray:
    info = eyes.tensors[name]
    return dequantize(eyes.read(name), info.type, info.shape)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_each_tensor_of_the_eyes_has_a_canonical_name(tmp_path: Path, model: TinyEyes) -> None:
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        assert eyes.architecture == model.name
        labels = {label for name in eyes.tensors for label in eyes.sources(name)}
        assert labels == model.used()
        for name, info in eyes.tensors.items():
            assert len(eyes.read(name)) == info.nbytes, name


def test_values_are_those_of_the_files(tmp_path: Path) -> None:
    state = IDEFICS3.eyes_state()
    with HuggingFaceCheckpoint.open(IDEFICS3.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        patches = state["model.vision_model.embeddings.patch_embedding.weight"]
        np.testing.assert_array_equal(tensor(eyes, "patches.weight"), patches.reshape(24, 48))
        for canonical, stored in {
            "layers.1.attention.output.bias": "encoder.layers.1.self_attn.out_proj.bias",
            "layers.0.mlp_norm.bias.weight": "encoder.layers.0.layer_norm2.bias",
            "output_norm.weight": "post_layernorm.weight",
        }.items():
            found = tensor(eyes, canonical)
            np.testing.assert_array_equal(found, state[f"model.vision_model.{stored}"])
        read = eyes.hyperparameters
        names = ("layers", "width", "mlp_width", "heads", "patch", "image_size", "merge")
        assert [read.integer(name) for name in names] == [2, 24, 36, 2, 4, 16, 2]
        assert read.integer("text_width") == 32
        assert read.number("norm_eps") == 1e-6
        assert read.get("activation") == "gelu"
        eyes.check_unchanged()


def test_fused_tensors_are_taken_apart_and_frames_are_summed(tmp_path: Path) -> None:
    state = QWEN2_VL.eyes_state()
    with HuggingFaceCheckpoint.open(QWEN2_VL.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        fused = state["visual.blocks.1.attn.qkv.weight"]
        for place, part in enumerate(("q", "k", "v")):
            found = tensor(eyes, f"layers.1.attention.{part}.weight")
            np.testing.assert_array_equal(found, fused[32 * place : 32 * place + 32])
            info = eyes.tensors[f"layers.1.attention.{part}.weight"]
            with (tmp_path / "model.safetensors").open("rb") as file:
                file.seek(info.place.offset)
                assert file.read(info.nbytes) == found.tobytes()
            part_of = eyes.read(f"layers.1.attention.{part}.weight", 8, 16)
            assert part_of.tobytes() == found.tobytes()[8:24]
        frames = state["visual.patch_embed.proj.weight"]
        np.testing.assert_array_equal(
            tensor(eyes, "patches.weight"), (frames[:, :, 0] + frames[:, :, 1]).reshape(32, 48)
        )
        assert not eyes.reads_parts("patches.weight")
        assert eyes.reads_parts("layers.1.attention.q.weight")


def test_columns_of_patches_are_in_order_channel_y_x(tmp_path: Path) -> None:
    state = LFM2_VL.eyes_state()
    (label,) = (one for one in state if one.endswith("patch_embedding.weight"))
    with HuggingFaceCheckpoint.open(LFM2_VL.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        ordered = state[label].reshape(24, 4, 4, 3).transpose(0, 3, 1, 2).reshape(24, 48)
        np.testing.assert_array_equal(tensor(eyes, "patches.weight"), ordered)


def test_a_convolution_of_mlx_has_its_channels_last(tmp_path: Path) -> None:
    state = IDEFICS3.eyes_state()
    label = "model.vision_model.embeddings.patch_embedding.weight"
    stored = state | {label: state[label].transpose(0, 2, 3, 1)}
    model = replace(IDEFICS3, eyes=lambda random: stored)
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        np.testing.assert_array_equal(tensor(eyes, "patches.weight"), state[label].reshape(24, 48))


def test_a_matrix_may_be_transposed_and_a_norm_without_its_one(tmp_path: Path) -> None:
    state = GEMMA3.eyes_state()
    begin = "multi_modal_projector.mm_"
    with HuggingFaceCheckpoint.open(GEMMA3.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        matrix = state[f"{begin}input_projection_weight"].T
        np.testing.assert_array_equal(tensor(eyes, "projection.matrix.weight"), matrix)
        norm = state[f"{begin}soft_emb_norm.weight"] + np.float32(1)
        np.testing.assert_array_equal(tensor(eyes, "projection.norm.weight"), norm)


def test_layers_that_no_picture_needs_are_left_out(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(LLAVA_NEXT.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        assert eyes.hyperparameters.integer("layers") == 2
        assert eyes.hyperparameters.get("feature_layers") == [1, 2]
        assert tensor(eyes, "row_break.weight").shape == (32,)


def test_bf16_stays_as_it_is_stored(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(QWEN2_VL.write_folder(tmp_path, "BF16")) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        conforms: Checkpoint = eyes
        assert conforms.tensors["layers.0.attention.k.weight"].type is TensorType.BF16
        assert conforms.tensors["patches.weight"].type is TensorType.F32


def test_folders_of_internvl_before_transformers_had_it(tmp_path: Path) -> None:
    new = INTERNVL.eyes_state()
    names = {
        "vision_tower.": "vision_model.",
        "patch_embeddings.projection": "patch_embedding",
        "cls_token": "class_embedding",
        "position_embeddings": "position_embedding",
        "encoder.layer.": "encoder.layers.",
        "attention.projection_layer": "attn.proj",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "lambda_1": "ls1",
        "lambda_2": "ls2",
        "multi_modal_projector.layer_norm": "mlp1.0",
        "multi_modal_projector.linear_1": "mlp1.1",
        "multi_modal_projector.linear_2": "mlp1.3",
    }
    old: dict[str, np.ndarray] = {}
    for label, values in new.items():
        name = label
        for one, other in names.items():
            name = name.replace(one, other)
        if "attention." not in name:
            old[name] = values
        elif "q_proj" in name:
            parts = [new[label.replace("q_proj", f"{one}_proj")] for one in "qkv"]
            old[name.replace("attention.q_proj", "attn.qkv")] = np.concatenate(parts)
    before = replace(
        INTERNVL, eyes=lambda random: old, whole=INTERNVL.whole | {"model_type": "internvl_chat"}
    )
    with (
        HuggingFaceCheckpoint.open(INTERNVL.write_folder(tmp_path / "new")) as newer,
        HuggingFaceCheckpoint.open(before.write_folder(tmp_path / "old")) as older,
    ):
        expected, found = eyes_of(newer), eyes_of(older)
        assert expected is not None
        assert found is not None
        assert found.tensors.keys() == expected.tensors.keys()
        for name in expected.tensors:
            np.testing.assert_array_equal(found.read(name), expected.read(name), err_msg=name)


def test_an_absent_tensor_is_named_as_the_files_name_it(tmp_path: Path) -> None:
    with HuggingFaceCheckpoint.open(IDEFICS3.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        with pytest.raises(ModelFileError, match=r"vision_model.embeddings.position_embedding.bia"):
            eyes.read("positions.bias")
        with pytest.raises(ModelFileError, match=r"tokenizer of the eyes is missing"):
            eyes.tokenizer()
        assert eyes.recommended().checked() == {}


def test_a_tower_may_be_named_without_its_inner_model(tmp_path: Path) -> None:
    state = {name.replace("vision_model.", ""): one for name, one in GEMMA3.eyes_state().items()}
    model = replace(GEMMA3, eyes=lambda random: state)
    with HuggingFaceCheckpoint.open(model.write_folder(tmp_path)) as checkpoint:
        eyes = eyes_of(checkpoint)
        assert eyes is not None
        assert {label for name in eyes.tensors for label in eyes.sources(name)} == set(state)
