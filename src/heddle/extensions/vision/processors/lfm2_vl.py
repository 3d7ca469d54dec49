"""LFM2-VL: one tile of the picture's own shape; of a large picture, square tiles before it.

Source: transformers' `Lfm2VlImageProcessor` and `Lfm2VlProcessor`. transformers resizes by torch,
Heddle by Pillow: about 2 % of values differ, by two levels of 256 at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    LONGEST_SIDE,
    MOST_TILES,
    check_most,
    check_true,
    fail,
    flag,
    number,
    of_clip,
    resampling,
    whole,
)
from heddle.extensions.vision.processors.normalising import HALF, normaliser_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Prepared
from heddle.extensions.vision.processors.resizing import cut, resized
from heddle.extensions.vision.processors.smart_sizes import smart_size
from heddle.extensions.vision.processors.tilings import closest_grid

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser


@dataclass(frozen=True, slots=True)
class Lfm2VL:
    """Resizes a picture to a number of rows between two limits; cuts a larger one, too.

    Attributes:
        patch: pixels of a side of a patch.
        unit: pixels of a side of one row's square: the patch size times the merge.
        least_rows, most_rows: limits of the picture that is not cut.
        tolerance: a picture is cut that has more than this times `most_rows`.
        side: pixels of a side of a tile.
        least, most: tiles of a picture that is cut.
        has_thumbnail: whether the uncut picture follows the tiles.
    """

    patch: int
    unit: int
    least_rows: int
    most_rows: int
    tolerance: float
    side: int
    least: int
    most: int
    has_thumbnail: bool
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<image>"
    row_token: str = "<image>"

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width, _ = pixels.shape
        down, across = self._grid(height, width)
        tall, wide = self._size(height, width)
        tiles = []
        if down * across > 1:
            canvas = resized(pixels, down * self.side, across * self.side, self.resampling)
            tiles = cut(canvas, self.side, self.side)
        if not tiles or self.has_thumbnail:
            tiles.append(resized(pixels, tall, wide, self.resampling))
        return Prepared(self.normaliser.tiles(tiles), self._text(down, across, tall, wide))

    def count(self, width: int, height: int) -> int:
        down, across = self._grid(height, width)
        tall, wide = self._size(height, width)
        whole_rows = (tall // self.unit) * (wide // self.unit)
        if down * across == 1:
            return whole_rows
        return down * across * self._tile_rows() + self.has_thumbnail * whole_rows

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Tiles from top to bottom and from left to right; (1, 1) for an uncut picture."""
        tall, wide = (max(self.patch, self._rounded(side)) for side in (height, width))
        if self.most == 1 or tall * wide <= self.most_rows * self.unit**2 * self.tolerance:
            return 1, 1
        return closest_grid(height, width, self.side, self.least, self.most)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """The size of the uncut picture."""
        square = self.unit**2
        least, most = self.least_rows * square, self.most_rows * square
        return smart_size(height, width, self.unit, least, most, shortest=self.unit)

    def _rounded(self, pixels: int) -> int:
        return round(pixels / self.unit) * self.unit

    def _tile_rows(self) -> int:
        return (self.side // self.unit) ** 2

    def _text(self, down: int, across: int, tall: int, wide: int) -> str:
        picture = self.row_token * ((tall // self.unit) * (wide // self.unit))
        if down * across == 1:
            return f"<|image_start|>{picture}<|image_end|>"
        tile = self.row_token * self._tile_rows()
        grid = "".join(
            f"<|img_row_{row + 1}_col_{column + 1}|>{tile}"
            for row in range(down)
            for column in range(across)
        )
        thumbnail = f"<|img_thumbnail|>{picture}" if self.has_thumbnail else ""
        return f"<|image_start|>{grid}{thumbnail}<|image_end|>"


def lfm2_vl_of(values: Values) -> Lfm2VL:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off, or the tokens around pictures.
    """
    check_true(values, ("do_resize", "use_image_special_tokens"))
    patch = whole(values, "encoder_patch_size", 16, 1, 64)
    unit = patch * whole(values, "downsample_factor", 2, 1, 8)
    side = whole(values, "tile_size", 512, unit, LONGEST_SIDE)
    if side % unit:
        fail("tile_size", side, f"a multiple of {unit} pixels")
    most_rows = whole(values, "max_image_tokens", 256, 1, MOST_PIXELS // unit**2)
    splits = flag(values, "do_image_splitting", True)
    most = whole(values, "max_tiles", 10, 1, MOST_TILES)
    total = most * side**2 + most_rows * unit**2
    check_most("max_tiles", most, total, MOST_PIXELS, "pixels in tiles")
    return Lfm2VL(
        patch=patch,
        unit=unit,
        least_rows=whole(values, "min_image_tokens", 64, 1, most_rows),
        most_rows=most_rows,
        tolerance=number(values, "max_pixels_tolerance", 2.0, 0.0, 1e6),
        side=side,
        least=whole(values, "min_tiles", 2, 1, most) if splits else 1,
        most=most if splits else 1,
        has_thumbnail=flag(values, "use_thumbnail", True),
        resampling=resampling(values, Resampling.BILINEAR),
        normaliser=normaliser_of(values, HALF, HALF),
    )


def lfm2_vl_of_gguf(metadata: Values) -> Lfm2VL:
    """The processor of a GGUF file with the projector `lfm2`.

    Limits and tiles are those of the published models; the file does not have them.
    """
    names = {"patch_size": "encoder_patch_size", "projector.scale_factor": "downsample_factor"}
    return lfm2_vl_of(of_clip(metadata, names))
