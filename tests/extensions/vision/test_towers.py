"""Towers: the rows of all kinds of eyes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from seen import KEPT, distance, eyes_in, look_at, reference, rows_of, seen
from tiny_eyes import GEMMA3, INTERNVL, LLAVA, LLAVA_NEXT, MISTRAL3, MODELS, PIXTRAL, QWEN3_VL
from tiny_mmproj import KINDS, write_mmproj

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.gguf_eyes import gguf_eyes
from heddle.extensions.vision.kinds import kind_of
from heddle.extensions.vision.projections import TwoLayers
from heddle.weights.gguf.checkpoint import GGUFCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

every_model = pytest.mark.parametrize("model", MODELS, ids=str)


@every_model
def test_rows_are_those_of_transformers(tmp_path: Path, model: TinyEyes) -> None:
    with eyes_in(tmp_path, model) as eyes:
        assert distance(seen(eyes, model), model.expected()["rows"]) < 3e-3


@pytest.mark.parametrize("model", [one for one in MODELS if one.name in KINDS], ids=str)
def test_rows_of_gguf_eyes_are_those_of_transformers(tmp_path: Path, model: TinyEyes) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj-F32.gguf", model)
    text = GGUFCheckpoint.open(model.text.write(tmp_path / "text.gguf"))
    with text, gguf_eyes(mmproj, text) as eyes:
        assert distance(seen(eyes, model), model.expected()["rows"]) < 3e-3


@every_model
def test_company_and_pieces_change_no_bit(tmp_path: Path, model: TinyEyes) -> None:
    tiles = model.each_tile()
    others = [tile[::-1].copy() for tile in tiles]
    with eyes_in(tmp_path, model) as eyes:
        kind = kind_of(eyes)

        def looks() -> list:
            return [look_at(kind, one) for one in (tiles, others)]

        alone = rows_of(eyes, kind, looks()[0])
        one, other = looks()
        np.testing.assert_array_equal(rows_of(eyes, kind, other, one), other.rows)
        np.testing.assert_array_equal(one.rows, alone)
        assert not np.array_equal(other.rows, alone)
        np.testing.assert_array_equal(rows_of(eyes, kind, *looks(), seconds=0), alone)


@every_model
def test_rows_are_those_of_the_reference(tmp_path: Path, model: TinyEyes) -> None:
    with eyes_in(tmp_path, model) as eyes:
        kind, tiles = kind_of(eyes), model.each_tile()
        scenes = kind.scenes(tiles)
        made = np.concatenate([reference(eyes, kind, scene, "f16") for scene in scenes])
        exact = np.concatenate([reference(eyes, kind, scene, "f32") for scene in scenes])
        arrange = kind.arrange(tiles, KEPT)
        if arrange is not None:
            made, exact = arrange(made), arrange(exact)
        assert distance(seen(eyes, model), made) < 2e-3
        assert distance(exact, model.expected()["rows"]) < 2e-5


# --- rows that leave, and rows that join ---------------------------------------------------------


def test_the_row_of_the_token_before_the_patches_is_first_if_it_is_kept(tmp_path: Path) -> None:
    with eyes_in(tmp_path, LLAVA) as eyes:
        dropped = seen(eyes, LLAVA)
    with eyes_in(tmp_path, LLAVA, vision_feature_select_strategy="full") as eyes:
        kept = seen(eyes, LLAVA)
    np.testing.assert_array_equal(kept[1:], dropped)
    assert not (kept[0] == dropped).all(axis=1).any()


def test_lines_of_tiles_lose_their_margins(tmp_path: Path) -> None:
    tiles = LLAVA_NEXT.each_tile()
    with eyes_in(tmp_path, LLAVA_NEXT) as eyes:
        kind = kind_of(eyes)
        whole = rows_of(eyes, kind, look_at(kind, tiles))
        kept = replace(KEPT, top=1, left=2, height=2, width=4)
        found = rows_of(eyes, kind, look_at(kind, tiles, kept))
    np.testing.assert_array_equal(found[:16], whole[:16])
    lines = whole[16:].reshape(4, 9, -1)
    np.testing.assert_array_equal(found[16:].reshape(2, 5, -1)[:, :4], lines[1:3, 2:6])
    np.testing.assert_array_equal(found[16:].reshape(2, 5, -1)[:, 4], lines[1:3, 8])


def test_the_last_layer_may_be_seen_by_the_text_model_too(tmp_path: Path) -> None:
    last = {**QWEN3_VL.vision, "deepstack_visual_indexes": [1]}
    with eyes_in(tmp_path, QWEN3_VL, vision_config=last) as eyes:
        kind = kind_of(eyes)
        assert kind.tower.features == (2,)
        (scene,) = kind.scenes([QWEN3_VL.pixels()])
        assert distance(seen(eyes, QWEN3_VL), reference(eyes, kind, scene, "f16")) < 2e-3


@pytest.mark.parametrize(
    ("kind", "listed"),
    [
        ("qwen3_vl", {"deepstack_visual_indexes": []}),
        ("qwen3_5", {}),  # whose files need not say so
    ],
)
def test_rows_may_have_no_columns_for_the_first_layers(
    tmp_path: Path, kind: str, listed: dict[str, object]
) -> None:
    vision = {key: one for key, one in QWEN3_VL.vision.items() if "deepstack" not in key}
    with eyes_in(tmp_path, QWEN3_VL, model_type=kind, vision_config=vision | listed) as eyes:
        rows = seen(eyes, QWEN3_VL)
    assert distance(rows, QWEN3_VL.expected()["rows"][:, :32]) < 3e-3


def test_a_norm_of_rows_has_the_epsilon_of_the_text_model(tmp_path: Path) -> None:
    text = {**MISTRAL3.config()["text_config"], "rms_norm_eps": 0.5}  # type: ignore[dict-item]
    with eyes_in(tmp_path, MISTRAL3, text_config=text) as eyes:
        projection = kind_of(eyes).tower.projection
        assert isinstance(projection, TwoLayers)
        assert projection.norm_eps == 0.5


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "whole", "vision", "expected"),
    [
        (
            LLAVA,
            {"vision_feature_layer": [-1, -2]},
            {},
            r"\[2, 1\] is not supported.*from 1 on, ascending",
        ),
        (LLAVA, {"vision_feature_layer": [0, -2]}, {}, r"\[0, 1\] is not supported"),
        (MISTRAL3, {"vision_feature_layer": [1, 2]}, {}, r"\[1, 2\] is not.*one layer"),
        (
            QWEN3_VL,
            {},
            {"deepstack_visual_indexes": [1, 0]},
            r"\[1, 0\] is not supported.*from 0 on, ascending",
        ),
        (INTERNVL, {"vision_feature_layer": -2}, {}, "vision_feature_layer -2 is not supported"),
        (PIXTRAL, {}, {"num_attention_heads": 12}, "heads of 2 elements.*multiple of 4"),
        (PIXTRAL, {}, {"num_attention_heads": 5}, "is 5, which does not divide the width of 24"),
    ],
)
def test_values_that_are_not_supported(
    tmp_path: Path,
    model: TinyEyes,
    whole: dict[str, object],
    vision: dict[str, object],
    expected: str,
) -> None:
    changes = whole | {"vision_config": model.vision | vision}
    with (
        pytest.raises((UnsupportedModelError, ModelFileError), match=expected),
        eyes_in(tmp_path, model, **changes) as eyes,
    ):
        kind_of(eyes)


def test_a_line_of_tiles_has_no_place_for_the_token_before_the_patches(tmp_path: Path) -> None:
    model = replace(LLAVA, eyes=lambda random: LLAVA.eyes(random) | newline(32))
    with (
        eyes_in(
            tmp_path, model, model_type="llava_next", vision_feature_select_strategy="full"
        ) as eyes,
        pytest.raises(UnsupportedModelError, match="no place"),
    ):
        kind_of(eyes)


def newline(width: int) -> dict[str, np.ndarray]:
    return {"image_newline": np.zeros(width, np.float32)}


@pytest.mark.parametrize(
    ("model", "tensor", "values", "expected"),
    [
        (LLAVA_NEXT, "image_newline", np.zeros(8), "must have 32 elements, got 8"),
        (
            GEMMA3,
            "vision_tower.vision_model.embeddings.position_embedding.weight",
            np.zeros((15, 24)),
            r"shape \(15, 24\); it must have vectors of 24 elements of a square",
        ),
        (
            GEMMA3,
            "vision_tower.vision_model.embeddings.position_embedding.weight",
            np.full((16, 24), np.nan),
            "infinite or NaN",
        ),
        (
            INTERNVL,
            "vision_tower.encoder.layer.1.lambda_1",
            np.ones(12),
            r"lambda_1 has shape \(12,\).*as many elements as .*projection_layer.* rows",
        ),
        (
            MISTRAL3,
            "multi_modal_projector.patch_merger.merging_layer.weight",
            np.ones((24, 95)),
            "must have columns of a square of states",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, model: TinyEyes, tensor: str, values: np.ndarray, expected: str
) -> None:
    changed = {tensor: values.astype(np.float32)}
    model = replace(model, eyes=lambda random, own=model.eyes: own(random) | changed)
    with pytest.raises(ModelFileError, match=expected), eyes_in(tmp_path, model) as eyes:
        kind_of(eyes)


def test_a_vector_that_is_missing(tmp_path: Path) -> None:
    model = replace(
        LLAVA_NEXT,
        eyes=lambda random: {
            name: one for name, one in LLAVA_NEXT.eyes(random).items() if name != "image_newline"
        },
    )
    with (
        eyes_in(tmp_path, model) as eyes,
        pytest.raises(ModelFileError, match="tensor image_newline is missing"),
    ):
        kind_of(eyes)


def test_eyes_of_an_unknown_kind(tmp_path: Path) -> None:
    with eyes_in(tmp_path, GEMMA3) as eyes:
        eyes.architecture = "ears"
        with pytest.raises(UnsupportedModelError, match=r"'ears' are not supported; .*gemma3"):
            kind_of(eyes)


def test_a_tile_of_another_size_than_the_positions(tmp_path: Path) -> None:
    with eyes_in(tmp_path, GEMMA3) as eyes:
        kind = kind_of(eyes)
        with pytest.raises(ModelFileError, match=r"6 patches along a side.*positions of 4"):
            kind.scenes([np.zeros((16, 24, 3), np.float32)])
