"""Sizes in bytes and counts as texts: `512M`, `2GiB`, `0.54 GB`, `1 model`."""

from __future__ import annotations

import math
import re

from heddle.errors import ConfigError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)
_SIZE_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes from `512M`, `2GiB`, `1.5g` or a plain number. All units are binary.

    Raises:
        ConfigError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    size = float(match[1]) * 1024 ** _SIZE_POWER[match[2].lower()] if match else math.inf
    if math.isinf(size):
        raise ConfigError(f"{text!r} is not a size; write for example 512M or 2GiB")
    return int(size)


def format_size(size: int) -> str:
    """A size in the largest binary unit that is exact: 33554432 is `32M`. `parse_size` reads it."""
    unit = ""
    for larger in "KMGT":
        if size == 0 or size % 1024:
            break
        size, unit = size // 1024, larger
    return f"{size}{unit}"


def gigabytes(size: int) -> str:
    """A size for people, in GB of 10^9 bytes."""
    return f"{size / 1e9:,.2f} GB"


def counted(count: int, thing: str, things: str = "") -> str:
    """A count with its noun: `1 model`, `2,000 models`. `things` is a plural without a mere s."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"
