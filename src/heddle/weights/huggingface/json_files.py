"""JSON in a Hugging Face folder: limits on what a file may hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, ModelSourceError

if TYPE_CHECKING:
    from pathlib import Path

Config = dict[str, object]

_LARGEST_JSON = 64 << 20
"""Most bytes of a file. The largest known tokenizer.json has 35 MB. Parsed JSON may take 25 times
its size in memory."""
_MOST_DIGITS = 19


def parse_json(raw: bytes, *, unique: bool = False) -> object:
    """The value that `raw` holds. `unique`: no object may have a key twice.

    Raises:
        ValueError: it is not JSON, or has a whole number that 64 bits do not hold. Work on numbers
            of thousands of digits takes seconds.
        RecursionError: it is nested too deeply.
    """
    hook = _unique if unique else None
    return json.loads(raw, parse_int=_whole, object_pairs_hook=hook)


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, object]]) -> Config:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def read_json(path: Path) -> Config:
    """The JSON object in a file.

    Raises:
        ModelSourceError: there is no such file, or it cannot be read.
        ModelFileError: the file is too large, or does not hold a JSON object.
    """
    raw = read_limited(path)
    try:
        value = parse_json(raw)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}", field=path.name) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} must hold a JSON object", field=path.name)
    return value


def read_limited(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        ModelSourceError: there is no such file, or it cannot be read.
        ModelFileError: the file is too large.
    """
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelFileError(f"{path} is larger than {_LARGEST_JSON} bytes", field=path.name)
        return path.read_bytes()
    except OSError as error:
        raise ModelSourceError(f"cannot read {path}: {error.strerror}") from error


def read_optional_json(path: Path) -> Config:
    """Read as :func:`read_json`; the result is empty if there is no such file."""
    return read_json(path) if path.is_file() else {}
