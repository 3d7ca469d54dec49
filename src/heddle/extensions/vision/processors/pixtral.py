"""Pixtral and Mistral 3: one tile of the picture's own shape, and a token after each row of it.

Source: transformers' `PixtralImageProcessorPil` and `PixtralProcessor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    LONGEST_SIDE,
    check_true,
    of_clip,
    part,
    resampling,
    square,
    text,
    whole,
)
from heddle.extensions.vision.processors.normalising import CLIP_MEAN, CLIP_STD, normaliser_of
from heddle.extensions.vision.processors.prepared import Prepared
from heddle.extensions.vision.processors.resizing import resized

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser


@dataclass(frozen=True, slots=True)
class Pixtral:
    """Shrinks a larger picture until both sides are at most `longest`, then rounds them up.

    Attributes:
        longest: most pixels of a side before rounding.
        unit: pixels of a side of one row's square: the patch size times the merge.
        line_token: stands after each line of squares but the last.
        end_token: stands after the last line.
    """

    longest: int
    unit: int
    line_token: str
    end_token: str
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str
    row_token: str

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        down, across = self._grid(*pixels.shape[:2])
        tile = resized(pixels, down * self.unit, across * self.unit, self.resampling)
        line = self.row_token * across
        return Prepared(
            self.normaliser.tiles([tile]), self.line_token.join([line] * down) + self.end_token
        )

    def count(self, width: int, height: int) -> int:
        down, across = self._grid(height, width)
        return down * across

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        ratio = max(height / self.longest, width / self.longest)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        # A side of less than one pixel has no squares there, which transformers cannot resize to.
        return max(math.ceil(height / self.unit), 1), max(math.ceil(width / self.unit), 1)


def pixtral_of(values: Values) -> Pixtral:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    check_true(values, ("do_resize",))
    unit = square(values, "patch_size", 16, 64) * whole(values, "spatial_merge_size", 1, 1, 8)
    token = text(values, "image_token", "[IMG]")
    return Pixtral(
        longest=whole(part(values, "size"), "longest_edge", 1024, 1, LONGEST_SIDE - unit),
        unit=unit,
        line_token=text(values, "image_break_token", "[IMG_BREAK]"),
        end_token=text(values, "image_end_token", "[IMG_END]"),
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=normaliser_of(values, CLIP_MEAN, CLIP_STD),
        placeholder=token,
        row_token=token,
    )


def pixtral_of_gguf(metadata: Values) -> Pixtral:
    """The processor of a GGUF file with the projector `pixtral`: its image size is the longest."""
    names = {
        "image_size": "longest",
        "patch_size": "patch_size",
        "spatial_merge_size": "spatial_merge_size",
    }
    clip = of_clip(metadata, names)
    return pixtral_of({**clip, "size": {"longest_edge": clip.get("longest", 1024)}})
