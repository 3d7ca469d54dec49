"""Gemma 3: every picture becomes one square tile with a fixed number of rows.

Source: transformers' `Gemma3ImageProcessorPil` and `Gemma3Processor`. Pan and scan, which adds
crops of long pictures, is off there unless a caller turns it on, whatever the file says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    MOST_ROWS,
    check_true,
    of_clip,
    resampling,
    square,
    whole,
)
from heddle.extensions.vision.processors.normalising import HALF, normaliser_of
from heddle.extensions.vision.processors.prepared import Prepared
from heddle.extensions.vision.processors.resizing import resized

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser


@dataclass(frozen=True, slots=True)
class Gemma3:
    """Stretches a picture to a square of `side` pixels, which has `rows` rows."""

    side: int
    rows: int
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<start_of_image>"
    row_token: str = "<image_soft_token>"

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        tile = resized(pixels, self.side, self.side, self.resampling)
        text = f"\n\n<start_of_image>{self.row_token * self.rows}<end_of_image>\n\n"
        return Prepared(self.normaliser.tiles([tile]), text)

    def count(self, width: int, height: int) -> int:
        return self.rows


def gemma3_of(values: Values) -> Gemma3:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    check_true(values, ("do_resize",))
    return Gemma3(
        side=square(values, "size", 224),
        rows=whole(values, "image_seq_length", 256, 1, MOST_ROWS),
        resampling=resampling(values, Resampling.BILINEAR),
        normaliser=normaliser_of(values, HALF, HALF),
    )


def gemma3_of_gguf(metadata: Values) -> Gemma3:
    """The processor of a GGUF file with the projector `gemma3`."""
    names = {"image_size": "size", "patch_size": "patch", "projector.scale_factor": "merge"}
    clip = of_clip(metadata, names)
    side = square(clip, "size", 896)
    across = side // whole(clip, "patch", 14, 1, side) // whole(clip, "merge", 4, 1, 64)
    return gemma3_of({**clip, "size": side, "image_seq_length": across**2})
