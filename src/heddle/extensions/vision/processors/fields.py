"""Checked values of preprocessor_config.json and processor_config.json, and of GGUF's clip.*.

The files come from strangers: every number has bounds, so that no file makes a picture take more
memory than `MOST_PIXELS` says.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from PIL.Image import Resampling

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

Values = Mapping[str, object]

LONGEST_SIDE = 4096
"""Most pixels of a side of a tile."""

MOST_TILES = 144
MOST_ROWS = 1 << 16
"""Most rows of one tile."""

_LONGEST_LIST = 1024
_NESTED = "image_processor"


def joined(preprocessor: Values, processor: Values) -> dict[str, object]:
    """The values of a folder's preprocessor_config.json and processor_config.json.

    As in transformers 5, the part `image_processor` of processor_config.json replaces the other
    file. The processor's own values win.
    """
    nested = processor.get(_NESTED)
    if not isinstance(nested, Mapping):
        nested = preprocessor
    return {**nested, **{key: value for key, value in processor.items() if key != _NESTED}}


def whole(values: Values, key: str, default: int, least: int, most: int) -> int:
    """An integer; `default` where the file has none."""
    value = values.get(key)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        fail(key, value, f"an integer from {least} to {most}")
    return value


def number(values: Values, key: str, default: float, least: float, most: float) -> float:
    """A number; `default` where the file has none."""
    value = values.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        fail(key, value, f"a number from {least:g} to {most:g}")
    return float(value)


def flag(values: Values, key: str, default: bool) -> bool:
    """A truth value; `default` where the file has none."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        fail(key, value, "true or false")
    return value


def text(values: Values, key: str, default: str) -> str:
    """A token's text; `default` where the file has none."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        fail(key, value, "a text of 1 to 64 characters")
    return value


def triple(
    values: Values, key: str, default: tuple[float, float, float], least: float, most: float
) -> tuple[float, float, float]:
    """A number for each of red, green and blue."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 3:
        fail(key, value, "a list of three numbers")
    red, green, blue = (number({key: one}, key, 0.0, least, most) for one in value)
    return red, green, blue


def part(values: Values, key: str) -> Values:
    """A part of the file; empty where the file has none."""
    value = values.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail(key, value, "an object")
    return value


def square(values: Values, key: str, default: int, most: int = LONGEST_SIDE) -> int:
    """The side of a square: an integer, or an object with `height` and `width`."""
    value = values.get(key)
    if not isinstance(value, Mapping):
        return whole(values, key, default, 1, most)
    sides = [whole(value, side, default, 1, most) for side in ("height", "width")]
    if sides[0] != sides[1]:
        raise UnsupportedModelError(
            f"{key} {dict(value)!r} is not supported; supported: the same height and width",
            param=key,
        )
    return sides[0]


def resampling(values: Values, default: Resampling) -> Resampling:
    """The filter that resizes pictures."""
    return Resampling(whole(values, "resample", default, 0, max(Resampling)))


def check_true(values: Values, keys: Iterable[str]) -> None:
    """Check that no file turns these steps off."""
    for key in keys:
        if not flag(values, key, True):
            raise UnsupportedModelError(f"{key} false is not supported; supported: true", param=key)


def check_most(key: str, value: object, found: int, most: int, what: str) -> None:
    """Check a product of several numbers of a file."""
    if found > most:
        fail(key, value, f"smaller: it makes {found} {what}, and the most is {most}")


def of_clip(metadata: Values, names: Mapping[str, str]) -> dict[str, object]:
    """Values of a GGUF file under the names that they have in a folder.

    Args:
        metadata: the metadata of the file with the encoder (mmproj).
        names: the folder's name for each key that follows `clip.vision.`
    """
    names = {"image_mean": "image_mean", "image_std": "image_std", **names}
    found: dict[str, object] = {}
    for key, name in names.items():
        value = metadata.get(f"clip.vision.{key}")
        if isinstance(value, np.ndarray):
            check_most(key, "an array", value.size, _LONGEST_LIST, "values")
            value = value.tolist()
        if value is not None:
            found[name] = value
    return found


def fail(key: str, value: object, expected: str) -> NoReturn:
    """Raise the error of a wrong value."""
    raise ModelFileError(f"{key} must be {expected}, got {reprlib.repr(value)}", field=key)
