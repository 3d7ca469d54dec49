"""The size of a picture between a least and a most number of pixels, with sides of whole units.

Source: `smart_resize` of Qwen2-VL, which Qwen's later models and LFM2-VL share.
"""

from __future__ import annotations

import math
from typing import NoReturn

from heddle.errors import InvalidRequestError
from heddle.extensions.vision.processors.prepared import MOST_PIXELS

MOST_RATIO = 200


def smart_size(
    height: int, width: int, unit: int, least: float, most: float, shortest: int = 0
) -> tuple[int, int]:
    """Height and width in multiples of `unit`, close to the picture's own ratio.

    Args:
        least: least pixels; a smaller picture is enlarged.
        most: most pixels; a larger picture is shrunk. A very thin one keeps more.
        shortest: least pixels of a side before either limit is looked at.

    Raises:
        InvalidRequestError: the picture is so thin that it would have too many pixels.
    """
    tall, wide = (max(shortest, round(side / unit) * unit) for side in (height, width))
    if tall * wide > most:
        shrinkage = math.sqrt((height * width) / most)
        tall = max(unit, math.floor(height / shrinkage / unit) * unit)
        wide = max(unit, math.floor(width / shrinkage / unit) * unit)
    elif tall * wide < least:
        growth = math.sqrt(least / (height * width))
        tall = math.ceil(height * growth / unit) * unit
        wide = math.ceil(width * growth / unit) * unit
    if tall * wide > MOST_PIXELS:
        _fail(height, width)
    return tall, wide


def check_ratio(height: int, width: int) -> None:
    """Check that a picture is not too thin.

    Raises:
        InvalidRequestError: one side is more than 200 times as long as the other.
    """
    if max(height, width) / min(height, width) > MOST_RATIO:
        _fail(height, width)


def _fail(height: int, width: int) -> NoReturn:
    raise InvalidRequestError(
        f"the picture has {width} x {height} pixels; this model takes pictures whose longer side"
        f" is at most {MOST_RATIO} times the shorter. Crop the picture.",
        param="messages",
    )
