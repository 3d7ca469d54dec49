"""LLaVA 1.5 with CLIP or SigLIP: one square tile, cut from the middle of the picture or stretched.

Source: transformers' `CLIPImageProcessorPil`, `SiglipImageProcessorPil` and `LlavaProcessor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.errors import InvalidRequestError, UnsupportedModelError
from heddle.extensions.vision.processors.fields import (
    LONGEST_SIDE,
    check_true,
    fail,
    flag,
    of_clip,
    part,
    resampling,
    square,
    text,
    whole,
)
from heddle.extensions.vision.processors.normalising import CLIP_MEAN, CLIP_STD, normaliser_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Prepared
from heddle.extensions.vision.processors.resizing import resized

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser


@dataclass(frozen=True, slots=True)
class Llava:
    """Makes a picture a square of `side` pixels.

    Attributes:
        rows: rows of the encoder.
        crops: whether the shorter side becomes `side` and the middle is kept; otherwise the picture
            is stretched.
    """

    side: int
    rows: int
    crops: bool
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str
    row_token: str

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width, _ = pixels.shape
        tall, wide = self._size(height, width)
        picture = resized(pixels, tall, wide, self.resampling)
        top, left = (tall - self.side) // 2, (wide - self.side) // 2
        tile = picture[top : top + self.side, left : left + self.side]
        return Prepared(self.normaliser.tiles([tile]), self.row_token * self.rows)

    def count(self, width: int, height: int) -> int:
        self._size(height, width)
        return self.rows

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """The size before the middle is cut out."""
        if not self.crops:
            return self.side, self.side
        longer = self.side * max(height, width) // min(height, width)
        if longer * self.side > MOST_PIXELS:
            raise InvalidRequestError(
                f"the picture has {width} x {height} pixels; this model takes pictures whose longer"
                f" side is at most {MOST_PIXELS // self.side**2} times the shorter. Crop the"
                " picture.",
                param="messages",
            )
        return (longer, self.side) if width <= height else (self.side, longer)


def llava_of(values: Values) -> Llava:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off, or pads pictures.
    """
    check_true(values, ("do_resize",))
    size = values.get("size")
    crops = not isinstance(size, dict) or "shortest_edge" in size
    side = square(values, "size", 224)
    if isinstance(size, dict) and crops:
        side = whole(part(values, "size"), "shortest_edge", 224, 1, LONGEST_SIDE)
    if crops and (crop := square(values, "crop_size", side)) != side:
        raise UnsupportedModelError(
            f"crop_size {crop} is not supported; supported: that of size, {side}", param="crop_size"
        )
    if flag(values, "do_pad", False):
        raise UnsupportedModelError(
            "do_pad true is not supported; supported: false", param="do_pad"
        )
    token = text(values, "image_token", "<image>")
    patches = side // whole(values, "patch_size", 14, 1, side)
    return Llava(
        side=side,
        rows=patches**2 + extra_rows(values),
        crops=crops,
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=normaliser_of(values, CLIP_MEAN, CLIP_STD),
        placeholder=token,
        row_token=token,
    )


def llava_of_gguf(metadata: Values) -> Llava:
    """The processor of a GGUF file with the projector `mlp` and without resolutions."""
    return llava_of(of_clip(metadata, {"image_size": "size", "patch_size": "patch_size"}))


def extra_rows(values: Values) -> int:
    """The rows besides patches. The strategy `default` drops the class token's row."""
    extra = whole(values, "num_additional_image_tokens", 0, 0, 64)
    key = "vision_feature_select_strategy"
    strategy = text(values, key, "full")
    if strategy not in ("full", "default"):
        fail(key, strategy, "full or default")
    return max(extra - (strategy == "default"), 0)
