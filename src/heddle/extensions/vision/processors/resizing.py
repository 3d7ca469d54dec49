"""Resizing, padding and cutting of pictures that are still bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Resampling

    Pixels = NDArray[np.uint8]


def resized(pixels: Pixels, height: int, width: int, resampling: Resampling) -> Pixels:
    """The picture with this size."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), resampling))


def padded(pixels: Pixels, height: int, width: int, top: int = 0, left: int = 0) -> Pixels:
    """The picture with black around it, up to this size."""
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas


def cut(pixels: Pixels, height: int, width: int) -> list[Pixels]:
    """The picture's tiles of this size, row by row from the left."""
    rows, columns = pixels.shape[0] // height, pixels.shape[1] // width
    return [
        pixels[row * height : (row + 1) * height, column * width : (column + 1) * width]
        for row in range(rows)
        for column in range(columns)
    ]
