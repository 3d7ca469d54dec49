"""What a processor makes of a picture, and what every processor offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_PIXELS = 1 << 24
"""Most pixels of all tiles of one picture: 48 Mi floats, 192 MiB."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Which rows of the encoder stand for the tiles of a picture.

    The rows of all tiles form one field of `down * patches` by `across * patches` rows. Of it, a
    margin on two sides is dropped, which has no picture. The row `image_newline` ends each line.

    Attributes:
        down, across: tiles from top to bottom and from left to right.
        top, left: lines and columns that are dropped on either side.
        height, width: lines and columns that are left.
    """

    down: int
    across: int
    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What an encoder reads of one picture.

    Attributes:
        tiles: (height, width, 3) float32 each, normalised. Their sides are multiples of the patch
            size, and of the patch size times the merge where the encoder merges patches.
        text: stands in the prompt for the placeholder. It has `Processor.row_token` once for each
            row of the encoder.
        kept: which rows of the tiles after the first stay; None: all.
    """

    tiles: tuple[NDArray[np.float32], ...]
    text: str
    kept: Kept | None = None


class Processor(Protocol):
    """Prepares the pictures of one model.

    Attributes:
        placeholder: what the chat template writes for a picture.
        row_token: the token that stands for one row of the encoder.
    """

    @property
    def placeholder(self) -> str: ...

    @property
    def row_token(self) -> str: ...

    def prepare(self, pixels: NDArray[np.uint8]) -> Prepared:
        """Prepare a picture of (height, width, 3) pixels.

        Raises:
            InvalidRequestError: the model does not take pictures of this shape.
        """

    def count(self, width: int, height: int) -> int:
        """The number of row tokens of a picture with this size.

        Raises:
            InvalidRequestError: the model does not take pictures of this shape.
        """
