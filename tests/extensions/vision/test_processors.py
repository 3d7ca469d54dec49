"""Prepared pictures against transformers' (make_pixels.py), and values of hostile files."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from vision_cases import CASES, digest, picture, samples, shapes, sizes

from heddle.errors import InvalidRequestError, ModelFileError, UnsupportedModelError
from heddle.extensions.vision.processors.any_shape import (
    glm4v_of,
    glm4v_of_gguf,
    qwen_vl_of,
    qwen_vl_of_gguf,
)
from heddle.extensions.vision.processors.fields import joined
from heddle.extensions.vision.processors.gemma3 import gemma3_of, gemma3_of_gguf
from heddle.extensions.vision.processors.gemma4 import gemma4_of, gemma4_of_gguf
from heddle.extensions.vision.processors.idefics3 import idefics3_of, idefics3_of_gguf
from heddle.extensions.vision.processors.internvl import internvl_of, internvl_of_gguf
from heddle.extensions.vision.processors.lfm2_vl import lfm2_vl_of, lfm2_vl_of_gguf
from heddle.extensions.vision.processors.llama4 import llama4_of, llama4_of_gguf
from heddle.extensions.vision.processors.llava import llava_of, llava_of_gguf
from heddle.extensions.vision.processors.llava_next import llava_next_of, llava_next_of_gguf
from heddle.extensions.vision.processors.normalising import Normaliser
from heddle.extensions.vision.processors.pixtral import pixtral_of, pixtral_of_gguf
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.extensions.vision.processors.prepared import Processor

DATA = Path(__file__).parent / "data" / "pixels"
SMALL = [name for name, case in CASES.items() if case.is_small]
PUBLISHED = [name for name, case in CASES.items() if not case.is_small]
PREPARED = (333, 777)
"""A size that every case prepares."""


@cache
def expected(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


def check_prepared(name: str, size: tuple[int, int]) -> None:
    case, found = CASES[name], expected(name)[f"{size[0]}x{size[1]}"]
    processor = case.made()
    if found is None:  # transformers refuses
        if case.family == "pixtral":
            assert processor.count(*size) > 0
        else:
            with pytest.raises(InvalidRequestError, match="at most 200 times the shorter"):
                processor.prepare(picture(*size))
        return
    prepared = processor.prepare(picture(*size))
    assert {tile.dtype for tile in prepared.tiles} == {np.dtype(np.float32)}
    assert shapes(prepared.tiles) == found[0], size
    assert prepared.text.count(processor.row_token) == processor.count(*size) == found[1], size
    assert digest(prepared.text) == found[2], size
    tolerance = 1e-5 + case.levels * 0.0082  # a level of 256, after division by 0.5
    np.testing.assert_allclose(samples(prepared.tiles, size), found[3], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", SMALL)
def test_pictures_of_all_shapes_are_prepared_as_by_transformers(name: str) -> None:
    for size in sizes():
        check_prepared(name, size)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_values_prepare_a_picture_as_by_transformers(name: str) -> None:
    check_prepared(name, PREPARED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_are_counted_without_pixels(name: str) -> None:
    processor, counted = CASES[name].made(), 0
    for width, height in sizes():
        found = expected(name)[f"{width}x{height}"]
        try:
            assert found is None or processor.count(width, height) == found[1], (width, height)
            counted += 1
        except InvalidRequestError:
            assert max(width, height) / min(width, height) > 148
    assert counted >= 40


TEXTS: dict[str, tuple[Callable[..., Processor], dict[str, object], tuple[int, int], str, str]] = {
    "idefics3": (
        idefics3_of,
        {
            "size": {"longest_edge": 8},
            "max_image_size": {"longest_edge": 4},
            "image_seq_len": 1,
        },
        (8, 4),
        "<image>",
        "<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>"
        "\n\n<fake_token_around_image><global-img><image><fake_token_around_image>",
    ),
    "qwen": (qwen_vl_of, {}, (56, 56), "<|image_pad|>", "<|image_pad|>" * 4),
    "gemma3": (
        gemma3_of,
        {"image_seq_length": 2},
        (9, 9),
        "<start_of_image>",
        "\n\n<start_of_image><image_soft_token><image_soft_token><end_of_image>\n\n",
    ),
    "pixtral": (
        pixtral_of,
        {},
        (32, 32),
        "[IMG]",
        "[IMG][IMG][IMG_BREAK][IMG][IMG][IMG_END]",
    ),
    "internvl": (
        internvl_of,
        {"image_seq_length": 1},
        (800, 400),
        "<IMG_CONTEXT>",
        "<img><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT></img>",
    ),
    "lfm2": (
        lfm2_vl_of,
        {"tile_size": 32, "max_image_tokens": 1, "min_image_tokens": 1},
        (64, 32),
        "<image>",
        "<|image_start|><image><|image_end|>",
    ),
    "lfm2 tiles": (
        lfm2_vl_of,
        {"tile_size": 32, "max_image_tokens": 1, "min_image_tokens": 1, "max_tiles": 2},
        (128, 64),
        "<image>",
        "<|image_start|><|img_row_1_col_1|><image><|img_row_1_col_2|><image>"
        "<|img_thumbnail|><image><|image_end|>",
    ),
    "llama4": (
        llama4_of,
        {"size": 28},
        (56, 28),
        "<|image|>",
        "<|image_start|><|patch|><|tile_x_separator|><|patch|><|tile_y_separator|>"
        "<|image|><|patch|><|image_end|>",
    ),
    "glm4v": (glm4v_of, {}, (28, 28), "<|image|>", "<|image|>" * 9),
    "gemma4": (gemma4_of, {"max_soft_tokens": 1}, (9, 9), "<|image|>", "<|image><|image|><image|>"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_picture(name: str) -> None:
    make, values, size, placeholder, text = TEXTS[name]
    processor = make(values)
    assert processor.placeholder == placeholder
    assert processor.prepare(picture(*size)).text == text


CLIP = {f"image_{part}": CASES["qwen2_vl"].image.get(f"image_{part}") for part in ("mean", "std")}
GGUF: dict[str, tuple[Callable[..., Processor], dict[str, object]]] = {
    "smolvlm2": (
        idefics3_of_gguf,
        {
            "image_size": 512,
            "patch_size": 16,
            "preproc_image_size": 2048,
            "projector.scale_factor": 4,
            "image_mean": np.array([0.5, 0.5, 0.5], np.float32),
            "image_std": np.array([0.5, 0.5, 0.5], np.float32),
        },
    ),
    "idefics3": (
        idefics3_of_gguf,
        {"image_size": 364, "patch_size": 14, "projector.scale_factor": 2},
    ),
    "qwen2_vl": (
        qwen_vl_of_gguf,
        {"patch_size": 14, "spatial_merge_size": 2, "projector_type": "qwen2.5vl_merger"},
    ),
    "qwen3_vl": (
        qwen_vl_of_gguf,
        {
            "patch_size": 16,
            "projector_type": "qwen3vl_merger",
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
    ),
    "gemma3": (gemma3_of_gguf, {"image_size": 896, "patch_size": 14}),
    "pixtral": (pixtral_of_gguf, {"image_size": 1024, "patch_size": 16}),
    "mistral3": (
        pixtral_of_gguf,
        {"image_size": 1540, "patch_size": 14, "spatial_merge_size": 2},
    ),
    "internvl": (
        internvl_of_gguf,
        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    ),
    "lfm2_vl": (lfm2_vl_of_gguf, {"patch_size": 16, "projector.scale_factor": 2}),
    "llava": (llava_of_gguf, {"image_size": 336, "patch_size": 14}),
    "llava_next": (
        llava_next_of_gguf,
        {
            "image_size": 336,
            "image_grid_pinpoints": np.array(
                [336, 672, 672, 336, 672, 672, 1008, 336, 336, 1008], np.int32
            ),
        },
    ),
    "llama4": (llama4_of_gguf, {"image_size": 336, "patch_size": 14}),
    "glm4v": (glm4v_of_gguf, {"patch_size": 14}),
    "gemma4": (gemma4_of_gguf, {"patch_size": 16, "projector.scale_factor": 3}),
}


def check_same(found: Processor, wanted: Processor) -> None:
    assert type(found) is type(wanted)
    for one in fields(found):
        mine, theirs = getattr(found, one.name), getattr(wanted, one.name)
        if isinstance(mine, Normaliser):
            np.testing.assert_allclose(mine.table, theirs.table, rtol=1e-6)
        else:
            assert mine == theirs, one.name


@pytest.mark.parametrize("name", GGUF)
def test_a_gguf_file_makes_the_published_processor(name: str) -> None:
    make, metadata = GGUF[name]
    found = make({f"clip.vision.{key}": value for key, value in metadata.items()})
    check_same(found, CASES[name].made())


HOSTILE: list[tuple[Callable[..., Processor], dict[str, object], str]] = [
    (idefics3_of, {"size": {"longest_edge": 1 << 30}}, "longest_edge"),
    (idefics3_of, {"size": {"longest_edge": 4096}}, "size"),
    (idefics3_of, {"size": {"longest_edge": True}}, "longest_edge"),
    (idefics3_of, {"size": [364]}, "size"),
    (idefics3_of, {"max_image_size": {"longest_edge": 0}}, "longest_edge"),
    (idefics3_of, {"image_seq_len": 1 << 17}, "image_seq_len"),
    (idefics3_of, {"do_image_splitting": 1}, "do_image_splitting"),
    (qwen_vl_of, {"patch_size": 0}, "patch_size"),
    (qwen_vl_of, {"merge_size": 9}, "merge_size"),
    (qwen_vl_of, {"min_pixels": 5000, "max_pixels": 4000}, "min_pixels"),
    (qwen_vl_of, {"min_pixels": 1, "max_pixels": 700}, "patch_size"),
    (qwen_vl_of, {"image_mean": [0.5, 0.5]}, "image_mean"),
    (qwen_vl_of, {"image_mean": "abc"}, "image_mean"),
    (qwen_vl_of, {"image_mean": [0.5, 0.5, float("nan")]}, "image_mean"),
    (qwen_vl_of, {"image_std": [0.5, 0.0, 0.5]}, "image_std"),
    (qwen_vl_of, {"rescale_factor": 0}, "rescale_factor"),
    (qwen_vl_of, {"resample": 99}, "resample"),
    (gemma3_of, {"size": {"height": 5000, "width": 5000}}, "height"),
    (gemma3_of, {"image_seq_length": 0}, "image_seq_length"),
    (pixtral_of, {"size": {"longest_edge": 4096}}, "longest_edge"),
    (pixtral_of, {"image_token": ""}, "image_token"),
    (pixtral_of, {"image_token": 5}, "image_token"),
    (internvl_of, {"max_patches": 145}, "max_patches"),
    (internvl_of, {"size": 1024, "max_patches": 16}, "max_patches"),
    (internvl_of, {"min_patches": 13}, "min_patches"),
    (lfm2_vl_of, {"tile_size": 500}, "tile_size"),
    (lfm2_vl_of, {"max_image_tokens": 1 << 20}, "max_image_tokens"),
    (lfm2_vl_of, {"min_image_tokens": 300}, "min_image_tokens"),
    (lfm2_vl_of, {"max_tiles": 100}, "max_tiles"),
    (llava_of, {"vision_feature_select_strategy": "some"}, "vision_feature_select_strategy"),
    (llava_next_of, {"image_grid_pinpoints": []}, "image_grid_pinpoints"),
    (llava_next_of, {"image_grid_pinpoints": [[224]]}, "image_grid_pinpoints"),
    (llava_next_of, {"image_grid_pinpoints": [[224, 225]]}, "image_grid_pinpoints"),
    (llava_next_of, {"image_grid_pinpoints": [[22400, 22400]]}, "image_grid_pinpoints"),
    (llava_next_of, {"image_grid_pinpoints": [[224, 448]] * 257}, "image_grid_pinpoints"),
    (llava_next_of_gguf, {"clip.vision.image_grid_pinpoints": [224]}, "image_grid_pinpoints"),
    (llama4_of, {"size": 1024}, "max_patches"),
    (llama4_of, {"pixel_shuffle_ratio": 0.0}, "pixel_shuffle_ratio"),
    (glm4v_of, {"size": {"shortest_edge": 5000, "longest_edge": 4000}}, "size"),
    (gemma4_of, {"max_soft_tokens": 1121}, "max_soft_tokens"),
    (gemma4_of, {"max_soft_tokens": 1120, "patch_size": 64}, "max_soft_tokens"),
]


@pytest.mark.parametrize("row", HOSTILE, ids=lambda row: f"{row[0].__name__} {row[2]}")
def test_a_file_with_a_wrong_value_is_refused(row: Any) -> None:
    make, values, field = row
    with pytest.raises(ModelFileError, match=field) as caught:
        make(values)
    assert caught.value.field.endswith(field)


UNSUPPORTED: list[tuple[Callable[..., Processor], dict[str, object], str]] = [
    (qwen_vl_of, {"do_resize": False}, "do_resize"),
    (gemma3_of, {"size": {"height": 224, "width": 448}}, "size"),
    (llava_of, {"size": {"shortest_edge": 336}, "crop_size": 224}, "crop_size"),
    (llava_of, {"do_pad": True}, "do_pad"),
    (llava_next_of, {"size": {"shortest_edge": 336}, "crop_size": 224}, "crop_size"),
    (lfm2_vl_of, {"use_image_special_tokens": False}, "use_image_special_tokens"),
]


@pytest.mark.parametrize("row", UNSUPPORTED, ids=lambda row: f"{row[0].__name__} {row[2]}")
def test_a_value_that_is_not_supported_is_refused(row: Any) -> None:
    make, values, field = row
    with pytest.raises(UnsupportedModelError, match=f"{field}.*supported: ") as caught:
        make(values)
    assert caught.value.param == field


def test_a_very_thin_picture_does_not_take_too_much_memory() -> None:
    with pytest.raises(InvalidRequestError, match="60000000 x 1 pixels"):
        lfm2_vl_of({}).count(60_000_000, 1)
    with pytest.raises(InvalidRequestError, match="at most 148 times the shorter"):
        CASES["llava"].made().count(149, 1)


def test_a_file_cannot_ask_for_more_pixels_than_the_most() -> None:
    processor = qwen_vl_of({"max_pixels": 1 << 39})
    assert processor.count(100_000, 100_000) * processor.unit**2 <= MOST_PIXELS


def test_a_long_array_is_not_made_a_list() -> None:
    with pytest.raises(ModelFileError, match="1025 values, and the most is 1024"):
        qwen_vl_of_gguf({"clip.vision.image_mean": np.zeros(1025, np.float32)})


def test_steps_that_a_file_turns_off() -> None:
    pixels = picture(56, 56)
    plain = qwen_vl_of({"do_normalize": False}).prepare(pixels).tiles[0]
    np.testing.assert_array_equal(plain, (pixels / 255).astype(np.float32))
    unscaled = qwen_vl_of({"do_normalize": False, "do_rescale": False}).prepare(pixels).tiles[0]
    np.testing.assert_array_equal(unscaled, pixels.astype(np.float32))


def test_processor_config_wins_over_preprocessor_config() -> None:
    files: tuple[dict[str, object], dict[str, object]] = (
        {"patch_size": 14, "size": 2, "resample": 1},
        {"patch_size": 16, "image_seq_length": 5},
    )
    assert joined(*files) == {"patch_size": 16, "size": 2, "resample": 1, "image_seq_length": 5}
    nested = {**files[1], "image_processor": {"size": 3}}
    assert joined(files[0], nested) == {"size": 3, "patch_size": 16, "image_seq_length": 5}


def test_llava_next_says_which_rows_are_kept() -> None:
    processor = CASES["llava_next"].made()
    assert processor.kept(672, 672) == Kept(2, 2, 0, 0, 48, 48)  # type: ignore[attr-defined]
    assert processor.kept(672, 600) == Kept(2, 2, 3, 0, 42, 48)  # type: ignore[attr-defined]
    assert processor.kept(300, 672) == Kept(2, 1, 0, 1, 48, 22)  # type: ignore[attr-defined]
    assert processor.prepare(picture(300, 672)).kept == Kept(2, 1, 0, 1, 48, 22)


def test_llama_4_shuffles_pixels_as_the_file_says() -> None:
    assert llama4_of({}).count(336, 336) == 144
    assert llama4_of({"pixel_shuffle_ratio": 1 / 3}).count(336, 336) == 64
    assert llama4_of_gguf({"clip.vision.projector.scale_factor": 3}).count(336, 336) == 64


def test_lfm2_vl_leaves_out_the_thumbnail() -> None:
    processor = lfm2_vl_of({"use_thumbnail": False})
    with_it = lfm2_vl_of({})
    size = (2000, 1000)
    prepared = processor.prepare(picture(*size))
    assert prepared.tiles[-1].shape == (512, 512, 3)
    assert "<|img_thumbnail|>" not in prepared.text
    assert prepared.text.count("<image>") == processor.count(*size) < with_it.count(*size)


def test_lfm2_vl_does_not_split_where_the_file_says_so() -> None:
    prepared = lfm2_vl_of({"do_image_splitting": False}).prepare(picture(2000, 1000))
    assert len(prepared.tiles) == 1


def test_llama_4_reads_numbers_of_bfloat16() -> None:
    tile = CASES["llama4"].made().prepare(picture(336, 336)).tiles[0]
    assert len(np.unique(tile)) > 100
    assert not (tile.view(np.uint32) & 0xFFFF).any()
