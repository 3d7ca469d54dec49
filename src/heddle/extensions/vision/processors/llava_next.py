"""LLaVA-NeXT and Granite Vision: the whole picture, then tiles of the best of some resolutions.

Source: transformers' `LlavaNextImageProcessorPil` and `LlavaNextProcessor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.errors import UnsupportedModelError
from heddle.extensions.vision.processors.fields import (
    LONGEST_SIDE,
    check_most,
    check_true,
    fail,
    flag,
    of_clip,
    resampling,
    square,
    text,
    whole,
)
from heddle.extensions.vision.processors.llava import extra_rows
from heddle.extensions.vision.processors.normalising import CLIP_MEAN, CLIP_STD, normaliser_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Kept, Prepared
from heddle.extensions.vision.processors.resizing import cut, padded, resized

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser

_MOST_RESOLUTIONS = 256
_USUAL = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@dataclass(frozen=True, slots=True)
class LlavaNext:
    """Fits a picture into a canvas of tiles.

    Attributes:
        side: pixels of a side of a tile.
        patches: patches of a side of a tile.
        extra: rows of the whole picture that are no patches, such as the class token.
        resolutions: (height, width) of the canvases.
    """

    side: int
    patches: int
    extra: int
    resolutions: tuple[tuple[int, int], ...]
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str
    row_token: str

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width, _ = pixels.shape
        tall, wide = self._canvas(height, width)
        fitted = _fitted(height, width, tall, wide)
        canvas = resized(pixels, *fitted, self.resampling)
        top, left = (tall - fitted[0]) // 2, (wide - fitted[1]) // 2
        tiles = cut(padded(canvas, tall, wide, top, left), self.side, self.side)
        tiles.insert(0, resized(pixels, self.side, self.side, self.resampling))
        rows = self.row_token * self.count(width, height)
        return Prepared(self.normaliser.tiles(tiles), rows, self.kept(width, height))

    def count(self, width: int, height: int) -> int:
        kept = self.kept(width, height)
        return self.patches**2 + self.extra + kept.height * (kept.width + 1)

    def kept(self, width: int, height: int) -> Kept:
        """Which rows of the tiles the encoder gives."""
        tall, wide = self._canvas(height, width)
        down, across = tall // self.side, wide // self.side
        lines, columns = down * self.patches, across * self.patches
        top = left = 0
        if width / height > columns / lines:
            top = (lines - int(round(height * (columns / width), 7))) // 2
        else:
            left = (columns - int(round(width * (lines / height), 7))) // 2
        return Kept(down, across, top, left, lines - 2 * top, columns - 2 * left)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """The resolution that keeps most pixels of the picture, and of those the smallest."""

        def worth(resolution: tuple[int, int]) -> tuple[int, int]:
            tall, wide = resolution
            scale = min(wide / width, tall / height)
            used = min(int(width * scale) * int(height * scale), width * height)
            return used, used - tall * wide

        return max(self.resolutions, key=worth)


def _fitted(height: int, width: int, tall: int, wide: int) -> tuple[int, int]:
    """The largest size with the picture's ratio in a canvas."""
    if wide / width < tall / height:
        return min(math.ceil(height * (wide / width)), tall), wide
    return tall, min(math.ceil(width * (tall / height)), wide)


def llava_next_of(values: Values) -> LlavaNext:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off, or tiles are not square.
    """
    check_true(values, ("do_resize",))
    side = _side(values)
    token = text(values, "image_token", "<image>")
    return LlavaNext(
        side=side,
        patches=side // whole(values, "patch_size", 14, 1, side),
        extra=extra_rows(values),
        resolutions=_resolutions(values, side),
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=normaliser_of(values, CLIP_MEAN, CLIP_STD),
        placeholder=token,
        row_token=token,
    )


def llava_next_of_gguf(metadata: Values) -> LlavaNext:
    """The processor of a GGUF file with the projector `mlp` and with resolutions.

    The file has all resolutions in one list.
    """
    names = {"image_size": "size", "patch_size": "patch_size", "image_grid_pinpoints": "list"}
    clip = of_clip(metadata, names)
    sides = clip.get("list")
    if not isinstance(sides, list) or not sides or len(sides) % 2:
        fail("clip.vision.image_grid_pinpoints", sides, "a list of pairs")
    pairs = [list(pair) for pair in zip(sides[::2], sides[1::2], strict=True)]
    return llava_next_of({**clip, "image_grid_pinpoints": pairs})


def _side(values: Values) -> int:
    """The side of a tile: that of pictures before they are cropped, and of the crop."""
    size = values.get("size")
    if isinstance(size, Mapping) and "shortest_edge" in size:
        side = whole(size, "shortest_edge", 224, 1, LONGEST_SIDE)
    else:
        side = square(values, "size", 224)
    if flag(values, "do_center_crop", True) and square(values, "crop_size", side) != side:
        raise UnsupportedModelError(
            f"crop_size {values['crop_size']!r} is not supported; supported: the value of size",
            param="crop_size",
        )
    return side


def _resolutions(values: Values, side: int) -> tuple[tuple[int, int], ...]:
    key = "image_grid_pinpoints"
    pairs = values.get(key, _USUAL)
    if not isinstance(pairs, Sequence) or not 0 < len(pairs) <= _MOST_RESOLUTIONS:
        fail(key, pairs, f"a list of 1 to {_MOST_RESOLUTIONS} pairs")
    return tuple(_resolution(key, pair, side) for pair in pairs)


def _resolution(key: str, pair: object, side: int) -> tuple[int, int]:
    if not isinstance(pair, Sequence) or len(pair) != 2:
        fail(key, pair, "pairs of height and width")
    height, width = (whole({key: one}, key, 0, side, MOST_PIXELS) for one in pair)
    if height % side or width % side:
        fail(key, pair, f"multiples of {side} pixels")
    check_most(key, pair, height * width + side**2, MOST_PIXELS, "pixels in tiles")
    return height, width
