"""Eyes and processors that are opened together: whether they fit, and how they lay prompts out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from seen import eyes_in
from tiny_eyes import GEMMA3, GEMMA4, GEMMA4_SMALL, IDEFICS3

from heddle.errors import ModelFileError, UnsupportedModelError
from heddle.extensions.vision.kinds import kind_of
from heddle.extensions.vision.opening import _are_whole, _check_tiles, _check_window
from heddle.extensions.vision.processors.any_shape import glm4v_of, qwen_vl_of
from heddle.extensions.vision.processors.gemma3 import gemma3_of
from heddle.extensions.vision.processors.gemma4 import gemma4_of
from heddle.extensions.vision.processors.idefics3 import idefics3_of
from heddle.extensions.vision.sighting import ModelEyes
from heddle.pictures import Illustrated, Picture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tiny_eyes_base import TinyEyes

    from heddle.extensions.vision.processors.prepared import Processor

    Make = Callable[[dict[str, Any]], Processor]

SQUARE = {"height": 16, "width": 16}
SMALL = {"patch_size": 4, "pooling_kernel_size": 2}


@pytest.mark.parametrize(
    ("model", "make", "values", "problem"),
    [
        (GEMMA3, gemma3_of, {"size": SQUARE, "image_seq_length": 4}, ""),
        (GEMMA3, gemma3_of, {"size": 32, "image_seq_length": 4}, "8 patches along a side.*of 4"),
        (GEMMA3, gemma3_of, {"size": SQUARE, "image_seq_length": 9}, "4 rows .* has 9 tokens"),
        (GEMMA4, gemma4_of, {**SMALL, "max_soft_tokens": 8}, ""),
        (GEMMA4, gemma4_of, {**SMALL, "max_soft_tokens": 9}, "18 patches along a side.*of 16"),
        (
            IDEFICS3,
            idefics3_of,
            {"size": {"longest_edge": 16}, "max_image_size": {"longest_edge": 16}},
            "4 rows .* has 169 tokens",
        ),
    ],
)
def test_sizes_of_processors_that_contradict_those_of_eyes(
    tmp_path: Path, model: TinyEyes, make: Make, values: dict[str, Any], problem: str
) -> None:
    with eyes_in(tmp_path, model) as eyes:
        kind, processor = kind_of(eyes), make(values)
        if not problem:
            _check_tiles(kind, processor)
            return
        with pytest.raises(ModelFileError, match=problem):
            _check_tiles(kind, processor)


@pytest.mark.parametrize(
    ("model", "whole"), [(GEMMA3, True), (IDEFICS3, False), (GEMMA4, True), (GEMMA4_SMALL, False)]
)
def test_tokens_of_a_picture_see_one_another_in_some_models(
    tmp_path: Path, model: TinyEyes, whole: bool
) -> None:
    with eyes_in(tmp_path, model) as eyes:
        assert _are_whole(eyes, text_model(0)) is whole


def text_model(value: int) -> Any:
    """A text model of which a hyperparameter, whichever it is, has this value."""
    return SimpleNamespace(hyperparameters=SimpleNamespace(count=lambda name: value))


@pytest.mark.parametrize("window", [0, 8, 7])
@pytest.mark.parametrize(
    "processor", [gemma4_of({**SMALL, "max_soft_tokens": 8}), gemma3_of({"image_seq_length": 8})]
)
def test_a_window_must_hold_a_picture_whose_tokens_see_one_another(
    processor: Processor, window: int
) -> None:
    if window != 7:
        _check_window(text_model(window), processor)
        return
    with pytest.raises(UnsupportedModelError, match=r"have 8 tokens .* see 7 positions only"):
        _check_window(text_model(window), processor)


@pytest.mark.parametrize("width", [0, 10])
def test_files_of_gemma_4_do_not_say_so(width: int) -> None:
    eyes: Any = SimpleNamespace(
        architecture="gemma4", hyperparameters=SimpleNamespace(get=lambda name: None)
    )
    assert _are_whole(eyes, text_model(width)) is (width == 0)


def test_padding_stands_where_rows_of_gemma_4_are(tmp_path: Path) -> None:
    """The token of rows has inputs of layers, too, which rows must not have."""
    tokenizer: Any = SimpleNamespace(
        encode_chat=lambda text: [7 if word == "<|image|>" else 5 for word in spaced(text)]
    )

    def spaced(text: str) -> list[str]:
        return text.replace("<|image|>", " <|image|> ").split()

    encoder: Any = None
    with eyes_in(tmp_path, GEMMA4) as eyes:
        processor = gemma4_of({**SMALL, "max_soft_tokens": 8})
        model = ModelEyes(
            *(kind_of(eyes), processor, encoder, tokenizer, 7, 0, 1 << 20),
            **{"summary": "", "most_patches": 4096, "has_axes": False, "whole": True},
        )
        picture = Picture.of(np.zeros((16, 16, 3), np.uint8))
        laid = model.lay(Illustrated("Look: <|image|>", (picture,)))
    assert laid.tokens == [5, 5, 0, 0, 0, 0, 5]
    [span] = laid.pictures.spans
    assert (span.first, span.count) == (2, 4)


@pytest.mark.parametrize("make", [gemma4_of, qwen_vl_of, glm4v_of])
def test_pictures_of_any_shape_are_limited(make: Callable[[dict[str, Any]], Any]) -> None:
    processor = make({})
    assert processor.count(800, 600) > 70
    assert 50 < processor.limited(70).count(800, 600) <= 70
    assert processor.limited(10**6).count(800, 600) == processor.count(800, 600)
