"""InternVL 3: tiles of a grid close to the picture's shape, and a thumbnail after them.

Source: transformers' `GotOcr2ImageProcessorPil` and `InternVLProcessor`. The latter always cuts
pictures, whatever `crop_to_patches` says in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    LONGEST_SIDE,
    MOST_ROWS,
    MOST_TILES,
    check_most,
    check_true,
    of_clip,
    resampling,
    square,
    whole,
)
from heddle.extensions.vision.processors.normalising import CLIP_MEAN, CLIP_STD, normaliser_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Prepared
from heddle.extensions.vision.processors.resizing import cut, resized
from heddle.extensions.vision.processors.tilings import closest_grid

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser


@dataclass(frozen=True, slots=True)
class InternVL:
    """Cuts a picture in `least` to `most` tiles.

    Attributes:
        side: pixels of a side of a tile.
        rows: rows of the encoder for a tile.
    """

    side: int
    rows: int
    least: int
    most: int
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<IMG_CONTEXT>"
    row_token: str = "<IMG_CONTEXT>"

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width, _ = pixels.shape
        down, across = closest_grid(height, width, self.side, self.least, self.most)
        canvas = resized(pixels, down * self.side, across * self.side, self.resampling)
        tiles = cut(canvas, self.side, self.side)
        if len(tiles) > 1:
            tiles.append(resized(pixels, self.side, self.side, self.resampling))
        text = f"<img>{self.row_token * self.rows * len(tiles)}</img>"
        return Prepared(self.normaliser.tiles(tiles), text)

    def count(self, width: int, height: int) -> int:
        down, across = closest_grid(height, width, self.side, self.least, self.most)
        tiles = down * across
        return self.rows * (tiles + (tiles > 1))


def internvl_of(values: Values) -> InternVL:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    check_true(values, ("do_resize",))
    side = square(values, "size", 384)
    most = whole(values, "max_patches", 12, 1, MOST_TILES)
    check_most("max_patches", most, (most + 1) * side**2, MOST_PIXELS, "pixels in tiles")
    return InternVL(
        side=side,
        rows=whole(values, "image_seq_length", 256, 1, MOST_ROWS),
        least=whole(values, "min_patches", 1, 1, most),
        most=most,
        resampling=resampling(values, Resampling.BICUBIC),
        normaliser=normaliser_of(values, CLIP_MEAN, CLIP_STD),
    )


def internvl_of_gguf(metadata: Values) -> InternVL:
    """The processor of a GGUF file with the projector `internvl`."""
    names = {
        "image_size": "size",
        "patch_size": "patch",
        "projector.scale_factor": "merge",
        "preproc_min_tiles": "min_patches",
        "preproc_max_tiles": "max_patches",
    }
    clip = of_clip(metadata, names)
    side = whole(clip, "size", 448, 1, LONGEST_SIDE)
    across = side // whole(clip, "patch", 14, 1, side) // whole(clip, "merge", 2, 1, 64)
    return internvl_of({**clip, "size": side, "image_seq_length": across**2})
