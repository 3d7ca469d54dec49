"""Idefics3, SmolVLM, SmolVLM2 and Granite Docling: tiles, and the whole picture after them.

Source: transformers' `Idefics3ImageProcessorPil` and `Idefics3Processor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from heddle.extensions.vision.processors.fields import (
    LONGEST_SIDE,
    MOST_ROWS,
    check_most,
    check_true,
    flag,
    of_clip,
    part,
    resampling,
    whole,
)
from heddle.extensions.vision.processors.normalising import HALF, normaliser_of
from heddle.extensions.vision.processors.prepared import MOST_PIXELS, Prepared
from heddle.extensions.vision.processors.resizing import cut, resized

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values
    from heddle.extensions.vision.processors.normalising import Normaliser

_FAKE = "<fake_token_around_image>"
_GLOBAL = "<global-img>"


@dataclass(frozen=True, slots=True)
class Idefics3:
    """Enlarges or shrinks a picture to `longest`, cuts it in tiles of `side`, adds it whole.

    Attributes:
        longest: pixels of the longer side of the picture.
        side: pixels of a side of a tile.
        rows: rows of the encoder for a tile.
        splits: whether pictures are cut; otherwise the picture is one tile.
    """

    longest: int
    side: int
    rows: int
    splits: bool
    resampling: Resampling
    normaliser: Normaliser
    placeholder: str = "<image>"
    row_token: str = "<image>"

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        height, width, _ = pixels.shape
        down, across = self._grid(width, height)
        tiles = []
        height, width = _longest(height, width, self.longest)
        pixels = resized(pixels, height, width, self.resampling)
        if self.splits:
            height, width = self._whole_tiles(height, width)
            pixels = resized(pixels, height, width, self.resampling)
            tiles = cut(pixels, self.side, self.side) if down else []
        tiles.append(resized(pixels, self.side, self.side, self.resampling))
        return Prepared(self.normaliser.tiles(tiles), self._text(down, across))

    def count(self, width: int, height: int) -> int:
        down, across = self._grid(width, height)
        return (down * across + 1) * self.rows

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Tiles from top to bottom and from left to right; zeros for an uncut picture."""
        if not self.splits:
            return 0, 0
        height, width = self._whole_tiles(*_longest(height, width, self.longest))
        down, across = height // self.side, width // self.side
        return (0, 0) if down == across == 1 else (down, across)

    def _whole_tiles(self, height: int, width: int) -> tuple[int, int]:
        """The size with whole tiles: first the longer side, then the other side in proportion."""
        ratio = width / height
        if width >= height:
            width = self._ceiling(width)
            return self._ceiling(int(width / ratio)), width
        height = self._ceiling(height)
        return height, self._ceiling(int(height * ratio))

    def _ceiling(self, pixels: int) -> int:
        return max(math.ceil(pixels / self.side), 1) * self.side

    def _text(self, down: int, across: int) -> str:
        rows = self.row_token * self.rows
        grid = "".join(
            "".join(f"{_FAKE}<row_{row + 1}_col_{column + 1}>{rows}" for column in range(across))
            + "\n"
            for row in range(down)
        )
        start = "\n" if grid else ""
        return f"{grid}{start}{_FAKE}{_GLOBAL}{rows}{_FAKE}"


def _longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """The size whose longer side is `longest`; the other side is even."""
    ratio = width / height
    if width >= height:
        other = int(longest / ratio)
        return max(other + other % 2, 1), longest
    other = int(longest * ratio)
    return longest, max(other + other % 2, 1)


def idefics3_of(values: Values) -> Idefics3:
    """The processor that a folder describes.

    Raises:
        ModelFileError: a value has a wrong type, or is out of range.
        UnsupportedModelError: the file turns resizing off.
    """
    check_true(values, ("do_resize",))
    longest = whole(part(values, "size"), "longest_edge", 4 * 364, 1, LONGEST_SIDE)
    side = whole(part(values, "max_image_size"), "longest_edge", 364, 1, LONGEST_SIDE)
    most = math.ceil(longest / side) * side
    check_most("size", longest, most**2 + side**2, MOST_PIXELS, "pixels in tiles")
    return Idefics3(
        longest=longest,
        side=side,
        rows=whole(values, "image_seq_len", 169, 1, MOST_ROWS),
        splits=flag(values, "do_image_splitting", True),
        resampling=resampling(values, Resampling.LANCZOS),
        normaliser=normaliser_of(values, HALF, HALF),
    )


def idefics3_of_gguf(metadata: Values) -> Idefics3:
    """The processor of a GGUF file with the projector `idefics3`.

    Where the file does not say how long the longer side is, it is four tiles.
    """
    clip = of_clip(
        metadata,
        {
            "image_size": "side",
            "patch_size": "patch",
            "preproc_image_size": "longest",
            "projector.scale_factor": "merge",
        },
    )
    side = whole(clip, "side", 364, 1, LONGEST_SIDE)
    patches = side // whole(clip, "patch", 14, 1, side)
    return idefics3_of(
        {
            **clip,
            "size": {"longest_edge": clip.get("longest", min(4 * side, LONGEST_SIDE))},
            "max_image_size": {"longest_edge": side},
            "image_seq_len": patches**2 // whole(clip, "merge", 2, 1, 64) ** 2,
        }
    )
