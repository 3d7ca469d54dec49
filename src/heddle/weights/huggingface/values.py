"""Values of config.json that need a check before anything is computed from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping


def by_kind(key: str, kinds: list[object], meanings: Mapping[str, bool]) -> list[bool]:
    """The meaning of each entry of a list of kinds of layers.

    Raises:
        UnsupportedModelError: an entry is not among the meanings.
    """
    known = [meanings.get(kind) if isinstance(kind, str) else None for kind in kinds]
    found = [meaning for meaning in known if meaning is not None]
    if len(found) < len(kinds):
        raise UnsupportedModelError(
            f"config.json: {key} {kinds[known.index(None)]!r} is not supported; supported:"
            f" {', '.join(meanings)}",
            param=key,
        )
    return found


def numbers_in(values: list[object]) -> frozenset[int]:
    """The whole numbers of a list. Looking for each layer in the list would take quadratic time."""
    return frozenset(value for value in values if isinstance(value, int))


def scaled(key: str, factor: float, size: int) -> int:
    """`size` times the factor under `key`, rounded towards zero.

    Raises:
        ModelFileError: the factor is negative, infinite or NaN, or too large.
    """
    if not 0 <= factor < 1 << 16 or not math.isfinite(factor):
        raise ModelFileError(f"{key} must be a factor from 0 to 65536, got {factor!r}", field=key)
    return int(factor * size)
