"""From bytes to the numbers that an encoder reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle.extensions.vision.processors.fields import flag, number, triple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from heddle.extensions.vision.processors.fields import Values

Colours = tuple[float, float, float]

HALF: Colours = (0.5, 0.5, 0.5)
CLIP_MEAN: Colours = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Colours = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, eq=False)
class Normaliser:
    """Turns bytes into normalised numbers.

    A byte has 256 values, so the numbers come from a table.

    Attributes:
        table: (256, 3) float32: the number for each byte of red, green and blue.
    """

    table: NDArray[np.float32]

    def tiles(self, pictures: Iterable[NDArray[np.uint8]]) -> tuple[NDArray[np.float32], ...]:
        return tuple(self._tile(picture) for picture in pictures)

    def _tile(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        tile = np.empty(pixels.shape, np.float32)
        for colour in range(3):
            tile[..., colour] = self.table[:, colour][pixels[..., colour]]
        return tile


def normaliser_of(values: Values, mean: Colours, std: Colours) -> Normaliser:
    """The normaliser that a file describes; `mean` and `std` are the family's.

    The order of operations is that of transformers: the product with the scale is rounded to
    float32 before the mean is subtracted.
    """
    scale, mean, std = scaling_of(values, mean, std)
    scaled = (np.arange(256, dtype=np.float64) * scale).astype(np.float32)
    centred = scaled[:, None] - np.array(mean, np.float32)
    return Normaliser(np.divide(centred, np.array(std, np.float32), dtype=np.float32))


def scaling_of(values: Values, mean: Colours, std: Colours) -> tuple[float, Colours, Colours]:
    """Scale, mean and standard deviation of a file that may turn each of them off."""
    scale = number(values, "rescale_factor", 1 / 255, 1e-6, 1.0)
    if not flag(values, "do_rescale", True):
        scale = 1.0
    mean = triple(values, "image_mean", mean, -1000.0, 1000.0)
    std = triple(values, "image_std", std, 1e-4, 1000.0)
    if not flag(values, "do_normalize", True):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return scale, mean, std
