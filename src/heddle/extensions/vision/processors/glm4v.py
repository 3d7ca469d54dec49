"""GLM-4V (GLM-4.1V, GLM-4.5V, GLM-4.6V): one tile of the picture's own shape.

Source: transformers' `Glm4vImageProcessorPil` and `Glm4vProcessor`. As with Qwen2-VL, transformers
repeats the picture as a second frame, and the limits count the pixels of both frames.
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
class Glm4V:
    """Resizes a picture to a number of pixels between two limits.

    Attributes:
        unit: pixels of a side of one row's square: the patch size times the merge.
        least, most: pixels of a picture.
    """

    unit: int
    least: float
    most: float
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<|image|>"
    row_token: str = "<|image|>"

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width = self._size(*pixels.shape[:2])
        tile = resized(pixels, height, width, self.resampling)
        rows = (height // self.unit) * (width // self.unit)
        return Prepared(self.normaliser.tiles([tile]), self.row_token * rows)

    def count(self, width: int, height: int) -> int:
        height, width = self._size(height, width)
        return (height // self.unit) * (width // self.unit)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        if min(height, width) < self.unit:
            scale = max(self.unit / height, self.unit / width)
            height, width = int(height * scale), int(width * scale)
        check_ratio(height, width)
        return smart_size(height, width, self.unit, self.least, self.most)


def glm4v_of(values: Values) -> Glm4V:
    """The processor that a folder describes. Pictures have `MOST_PIXELS` or fewer.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    check_true(values, ("do_resize",))
    unit = whole(values, "patch_size", 14, 1, 64) * whole(values, "merge_size", 2, 1, 8)
    frames = whole(values, "temporal_patch_size", 2, 1, 8)
    size = part(values, "size")
    least = whole(size, "shortest_edge", 112 * 112, 1, MOST_PIXELS)
    most = min(whole(size, "longest_edge", 28 * 28 * 15000, 1, 1 << 40), frames * MOST_PIXELS)
    check_most("size", least, least, most, "pixels")
    check_most("patch_size", unit, frames * unit**2, most, "pixels")
    return Glm4V(
        unit=unit,
        least=least / frames,
        most=most / frames,
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=normaliser_of(values, CLIP_MEAN, CLIP_STD),
    )


def glm4v_of_gguf(metadata: Values) -> Glm4V:
    """The processor of a GGUF file with the projector `glm4v`.

    The limits are those of the published models; the file does not have them.
    """
    clip = of_clip(metadata, {"patch_size": "patch_size", "spatial_merge_size": "merge_size"})
    return glm4v_of({"size": {"shortest_edge": 112 * 112, "longest_edge": 9633792}, **clip})
