"""Qwen2-VL to Qwen3.5, and GLM-4V: one tile of the picture's own shape.

Source: transformers' `Qwen2VLImageProcessorPil`, `Qwen2VLProcessor`, `Glm4vImageProcessorPil` and
`Glm4vProcessor`. transformers repeats the picture as a second frame; the encoder sums both halves
of its patches' weights instead. GLM's limits count the pixels of both frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

_CLIP_KEYS = {"patch_size": "patch_size", "spatial_merge_size": "merge_size"}


@dataclass(frozen=True, slots=True)
class AnyShape:
    """Resizes a picture to a number of pixels between two limits.

    Attributes:
        unit: pixels of a side of one row's square: the patch size times the merge.
        least, most: pixels of a picture.
        row_token: the token of a row, which is also the placeholder.
        enlarges: whether both sides grow first until the shorter one has a unit.
    """

    unit: int
    least: float
    most: float
    resampling: Resampling
    normaliser: Normaliser
    row_token: str
    enlarges: bool = False

    @property
    def placeholder(self) -> str:
        """See :class:`heddle.extensions.vision.processors.prepared.Processor`."""
        return self.row_token

    def limited(self, tokens: int) -> AnyShape:
        """The same processor, whose pictures become at most so many tokens."""
        most = min(int(self.most), tokens * self.unit**2)
        return replace(self, most=max(int(self.least), most))

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width = self._size(*pixels.shape[:2])
        tile = resized(pixels, height, width, self.resampling)
        rows = (height // self.unit) * (width // self.unit)
        return Prepared(self.normaliser.tiles([tile]), self.row_token * rows)

    def count(self, width: int, height: int) -> int:
        height, width = self._size(height, width)
        return (height // self.unit) * (width // self.unit)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        if self.enlarges and min(height, width) < self.unit:
            scale = max(self.unit / height, self.unit / width)
            height, width = int(height * scale), int(width * scale)
        check_ratio(height, width)
        return smart_size(height, width, self.unit, self.least, self.most)


def qwen_vl_of(values: Values) -> AnyShape:
    """The processor of Qwen that a folder describes. Pictures have `MOST_PIXELS` or fewer.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    size = part(values, "size")
    least = whole(size, "shortest_edge", 56 * 56, 1, MOST_PIXELS)
    most = whole(size, "longest_edge", 28 * 28 * 1280, 1, 1 << 40)
    least = whole(values, "min_pixels", least, 1, MOST_PIXELS)
    most = min(whole(values, "max_pixels", most, 1, 1 << 40), MOST_PIXELS)
    check_most("min_pixels", least, least, most, "pixels")
    return _of(values, least, most, row_token="<|image_pad|>")


def glm4v_of(values: Values) -> AnyShape:
    """The processor of GLM-4V that a folder describes. Pictures have `MOST_PIXELS` or fewer.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    frames = whole(values, "temporal_patch_size", 2, 1, 8)
    size = part(values, "size")
    least = whole(size, "shortest_edge", 112 * 112, 1, MOST_PIXELS)
    most = min(whole(size, "longest_edge", 28 * 28 * 15000, 1, 1 << 40), frames * MOST_PIXELS)
    check_most("size", least, least, most, "pixels")
    return _of(values, least / frames, most / frames, row_token="<|image|>", enlarges=True)


def _of(
    values: Values, least: float, most: float, *, row_token: str, enlarges: bool = False
) -> AnyShape:
    check_true(values, ("do_resize",))
    unit = whole(values, "patch_size", 14, 1, 64) * whole(values, "merge_size", 2, 1, 8)
    check_most("patch_size", unit, unit**2, int(most), "pixels")
    return AnyShape(
        unit=unit,
        least=least,
        most=most,
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=normaliser_of(values, CLIP_MEAN, CLIP_STD),
        row_token=row_token,
        enlarges=enlarges,
    )


def qwen_vl_of_gguf(metadata: Values) -> AnyShape:
    """The processor of a GGUF file with the projector of Qwen2-VL, Qwen2.5-VL or Qwen3-VL.

    The limits are those of the published models; the file does not have them.
    """
    kinds = [metadata.get(f"clip.{key}projector_type") for key in ("vision.", "")]
    limits = {"min_pixels": 56 * 56, "max_pixels": 16384 * 28 * 28}
    if "qwen3vl_merger" in kinds:
        limits = {"min_pixels": 256 * 256, "max_pixels": 16384 * 32 * 32}
    return qwen_vl_of({**limits, **of_clip(metadata, _CLIP_KEYS)})


def glm4v_of_gguf(metadata: Values) -> AnyShape:
    """The processor of a GGUF file with the projector `glm4v`.

    The limits are those of the published models; the file does not have them.
    """
    size = {"shortest_edge": 112 * 112, "longest_edge": 9633792}
    return glm4v_of({"size": size, **of_clip(metadata, _CLIP_KEYS)})
