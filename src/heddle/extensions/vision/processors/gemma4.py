"""Gemma 4: one tile of the picture's own shape, as large as the number of rows allows.

Source: transformers' `Gemma4ImageProcessorPil` and `Gemma4Processor`. The encoder of transformers
turns values x into 2 * (x - 0.5); here the table of values does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    check_most,
    check_true,
    flag,
    of_clip,
    resampling,
    whole,
)
from heddle.extensions.vision.processors.normalising import normaliser_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Prepared
from heddle.extensions.vision.processors.resizing import resized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser


@dataclass(frozen=True, slots=True)
class Gemma4:
    """Resizes a picture to at most `most` squares of `unit` pixels.

    Attributes:
        unit: pixels of a side of one row's square: the patch size times the pooling.
        most: rows of a picture.
        blank_token: whose inputs of layers rows have in the text model.
    """

    unit: int
    most: int
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<|image|>"
    row_token: str = "<|image|>"
    blank_token: str = "<pad>"

    def limited(self, tokens: int) -> Gemma4:
        """The same processor, whose pictures become at most so many tokens."""
        return replace(self, most=min(self.most, tokens))

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        down, across = self._grid(*pixels.shape[:2])
        tile = resized(pixels, down * self.unit, across * self.unit, self.resampling)
        text = f"<|image>{self.row_token * (down * across)}<image|>"
        return Prepared(self.normaliser.tiles([tile]), text)

    def count(self, width: int, height: int) -> int:
        down, across = self._grid(height, width)
        return down * across

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Squares from top to bottom and from left to right."""
        scale = math.sqrt(self.most * self.unit**2 / (height * width))
        down = math.floor(scale * height / self.unit)
        across = math.floor(scale * width / self.unit)
        if down == 0:
            return 1, min(width // height, self.most)
        if across == 0:
            return min(height // width, self.most), 1
        return down, across


def gemma4_of(values: Values) -> Gemma4:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    check_true(values, ("do_resize",))
    unit = whole(values, "patch_size", 16, 1, 64) * whole(values, "pooling_kernel_size", 3, 1, 8)
    most = whole(values, "max_soft_tokens", 280, 1, 1120)
    check_most("max_soft_tokens", most, most * unit**2, MOST_PIXELS, "pixels")
    normalises = flag(values, "do_normalize", False)
    normaliser = normaliser_of(
        {**values, "do_normalize": normalises}, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    )
    return Gemma4(
        unit=unit,
        most=most,
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=replace(normaliser, table=2 * (normaliser.table - np.float32(0.5))),
    )


def gemma4_of_gguf(metadata: Values) -> Gemma4:
    """The processor of a GGUF file with the projector `gemma4v`.

    The number of rows is that of the published models; the file does not have it.
    """
    names = {"patch_size": "patch_size", "projector.scale_factor": "pooling_kernel_size"}
    return gemma4_of(of_clip(metadata, names))
