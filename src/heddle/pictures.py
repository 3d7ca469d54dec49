"""Pictures in prompts: decoded pictures, prompts that hold some, and what a model with eyes offers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A decoded picture.

    Attributes:
        pixels: (height, width, 3) uint8: red, green, blue. It is upright, contiguous and read-only.
        digest: hex SHA-256 of height, width and pixels.
    """

    pixels: NDArray[np.uint8]
    digest: str

    @classmethod
    def of(cls, pixels: NDArray[np.uint8]) -> Self:
        """The picture with these pixels, which nobody may write to any more."""
        pixels.flags.writeable = False
        height, width, _ = pixels.shape
        size = height.to_bytes(4, "little") + width.to_bytes(4, "little")
        return cls(pixels, hashlib.sha256(size + pixels.tobytes()).hexdigest())


@dataclass(frozen=True, slots=True)
class Illustrated:
    """A prompt with pictures.

    Attributes:
        text: has the mark of the model's eyes once for each picture, in their order.
        pictures: the pictures.
    """

    text: str
    pictures: tuple[Picture, ...]
