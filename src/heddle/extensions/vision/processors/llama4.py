"""Llama 4: tiles of the canvas that fits best, and the whole picture after them.

Source: transformers' `Llama4ImageProcessor` and `Llama4Processor`. transformers resizes by torch,
Heddle by Pillow: about 1 % of values differ, by two levels of 256 at most. Numbers are rounded to
bfloat16 after each operation, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    LONGEST_SIDE,
    MOST_TILES,
    check_most,
    check_true,
    flag,
    number,
    of_clip,
    resampling,
    square,
    whole,
)
from heddle.extensions.vision.processors.normalising import HALF, Normaliser, scaling_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Prepared
from heddle.extensions.vision.processors.resizing import cut, padded, resized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values


@dataclass(frozen=True, slots=True)
class Llama4:
    """Puts a picture in the top left corner of a canvas of tiles.

    Attributes:
        side: pixels of a side of a tile.
        rows: rows of the encoder for a tile.
        enlarges: whether a small picture takes the largest canvas.
        canvases: tiles from top to bottom and from left to right of every canvas.
    """

    side: int
    rows: int
    enlarges: bool
    canvases: tuple[tuple[int, int], ...]
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<|image|>"
    row_token: str = "<|patch|>"

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width, _ = pixels.shape
        down, across = self._canvas(height, width)
        tall, wide = self._fitted(height, width, down * self.side, across * self.side)
        picture = resized(pixels, tall, wide, self.resampling)
        canvas = padded(picture, down * self.side, across * self.side)
        tiles = cut(canvas, self.side, self.side)
        if len(tiles) > 1:
            tiles.append(resized(pixels, self.side, self.side, self.resampling))
        return Prepared(self.normaliser.tiles(tiles), self._text(down, across))

    def count(self, width: int, height: int) -> int:
        down, across = self._canvas(height, width)
        tiles = down * across
        return self.rows * (tiles + (tiles > 1))

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """The canvas that needs least enlarging, or else least shrinking; of those the smallest.

        Scales are compared in float32, as in transformers.
        """
        sizes = np.array(self.canvases, np.float32) * np.float32(self.side)
        scales = (sizes / np.array([height, width], np.float32)).min(axis=1)
        larger = scales[scales >= 1]
        best = larger.min() if larger.size and not self.enlarges else scales.max()
        chosen = [self.canvases[index] for index in np.flatnonzero(scales == best)]
        return min(chosen, key=lambda canvas: canvas[0] * canvas[1])

    def _fitted(self, height: int, width: int, tall: int, wide: int) -> tuple[int, int]:
        """The largest size with the picture's ratio in the canvas, without enlarging it much."""
        if not self.enlarges:
            tall = min(max(height, self.side), tall)
            wide = min(max(width, self.side), wide)
        across, down = wide / width, tall / height
        if across < down:
            return max(min(math.floor(height * across), tall), 1), wide
        return tall, max(min(math.floor(width * down), wide), 1)

    def _text(self, down: int, across: int) -> str:
        tile = self.row_token * self.rows
        line = "<|tile_x_separator|>".join([tile] * across) + "<|tile_y_separator|>"
        grid = line * down if down * across > 1 else ""
        return f"<|image_start|>{grid}<|image|>{tile}<|image_end|>"


def llama4_of(values: Values) -> Llama4:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off, or tiles are not square.
    """
    check_true(values, ("do_resize",))
    side = square(values, "size", 336)
    most = whole(values, "max_patches", 16, 1, MOST_TILES)
    check_most("max_patches", most, (most + 1) * side**2, MOST_PIXELS, "pixels in tiles")
    patches = side // whole(values, "patch_size", 14, 1, side)
    ratio = number(values, "pixel_shuffle_ratio", 0.5, 0.125, 1.0)
    return Llama4(
        side=side,
        rows=patches**2 // round(1 / ratio**2),
        enlarges=flag(values, "resize_to_max_canvas", False),
        canvases=_canvases(most),
        resampling=resampling(values, Resampling.BILINEAR),
        normaliser=_normaliser_of(values),
    )


def llama4_of_gguf(metadata: Values) -> Llama4:
    """The processor of a GGUF file with the projector `llama4`."""
    names = {"image_size": "size", "patch_size": "patch_size", "projector.scale_factor": "merge"}
    clip = of_clip(metadata, names)
    merge = whole(clip, "merge", 2, 1, 8)
    size = whole(clip, "size", 336, 1, LONGEST_SIDE)
    return llama4_of({**clip, "size": size, "pixel_shuffle_ratio": 1 / merge})


def _canvases(most: int) -> tuple[tuple[int, int], ...]:
    """All canvases with at most so many tiles, in transformers' order: by ratio, then by size."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(most, 0, -1):
        for down in range(1, tiles + 1):
            if tiles % down == 0:
                canvas = down, tiles // down
                by_ratio.setdefault(down / canvas[1], []).append(canvas)
    return tuple(canvas for canvases in by_ratio.values() for canvas in canvases)


def _normaliser_of(values: Values) -> Normaliser:
    """The normaliser whose every operation gives a bfloat16."""
    scale, mean, std = scaling_of(values, HALF, HALF)
    scaled = _bfloat16(np.arange(256, dtype=np.float32) * np.float32(scale))[:, None]
    centred = _bfloat16(scaled - _bfloat16(np.array(mean, np.float32)))
    return Normaliser(_bfloat16(centred / _bfloat16(np.array(std, np.float32))))


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest bfloat16 of each number; of two, the even one."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
