"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL: one tile of the picture's own shape.

Source: transformers' `Qwen2VLImageProcessorPil` and `Qwen2VLProcessor`. transformers repeats the
picture as a second frame; the encoder sums both halves of its patches' weights instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    check_most,
    check_true,
    of_clip,
    part,
    resampling,
    whole,
)
from heddle.extensions.vision.processors.normalising import CLIP_MEAN, CLIP_STD, normaliser_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Prepared
from heddle.extensions.vision.processors.resizing import resized
from heddle.extensions.vision.processors.smart_sizes import check_ratio, smart_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser


@dataclass(frozen=True, slots=True)
class QwenVL:
    """Resizes a picture to a number of pixels between two limits.

    Attributes:
        unit: pixels of a side of one row's square: the patch size times the merge.
        least, most: pixels of a picture.
    """

    unit: int
    least: int
    most: int
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<|image_pad|>"
    row_token: str = "<|image_pad|>"

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width = self._size(*pixels.shape[:2])
        tile = resized(pixels, height, width, self.resampling)
        rows = (height // self.unit) * (width // self.unit)
        return Prepared(self.normaliser.tiles([tile]), self.row_token * rows)

    def count(self, width: int, height: int) -> int:
        height, width = self._size(height, width)
        return (height // self.unit) * (width // self.unit)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        check_ratio(height, width)
        return smart_size(height, width, self.unit, self.least, self.most)


def qwen_vl_of(values: Values) -> QwenVL:
    """The processor that a folder describes. Pictures have `MOST_PIXELS` or fewer.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    check_true(values, ("do_resize",))
    unit = whole(values, "patch_size", 14, 1, 64) * whole(values, "merge_size", 2, 1, 8)
    size = part(values, "size")
    least = whole(size, "shortest_edge", 56 * 56, 1, MOST_PIXELS)
    most = whole(size, "longest_edge", 28 * 28 * 1280, 1, 1 << 40)
    least = whole(values, "min_pixels", least, 1, MOST_PIXELS)
    most = min(whole(values, "max_pixels", most, 1, 1 << 40), MOST_PIXELS)
    check_most("min_pixels", least, least, most, "pixels")
    check_most("patch_size", unit, unit**2, most, "pixels")
    return QwenVL(
        unit=unit,
        least=least,
        most=most,
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=normaliser_of(values, CLIP_MEAN, CLIP_STD),
    )


def qwen_vl_of_gguf(metadata: Values) -> QwenVL:
    """The processor of a GGUF file with the projector of Qwen2-VL, Qwen2.5-VL or Qwen3-VL.

    The limits are those of the published models; the file does not have them.
    """
    clip = of_clip(metadata, {"patch_size": "patch_size", "spatial_merge_size": "merge_size"})
    kinds = [metadata.get(f"clip.{key}projector_type") for key in ("vision.", "")]
    limits = {"min_pixels": 56 * 56, "max_pixels": 16384 * 28 * 28}
    if "qwen3vl_merger" in kinds:
        limits = {"min_pixels": 256 * 256, "max_pixels": 16384 * 32 * 32}
    return qwen_vl_of({**limits, **clip})
