"""JSON files of a Hugging Face folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from heddle.errors import ModelFileError, ModelSourceError

if TYPE_CHECKING:
    from pathlib import Path

Config = dict[str, object]

_LARGEST_JSON = 256 << 20
"""Most bytes of a file. The largest known tokenizer.json has 35 MB."""


def read_json(path: Path) -> Config:
    """The JSON object in a file.

    Raises:
        ModelSourceError: there is no such file, or it cannot be read.
        ModelFileError: the file is too large, or does not hold a JSON object.
    """
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelFileError(f"{path} is larger than {_LARGEST_JSON} bytes", field=path.name)
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelSourceError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}", field=path.name) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} must hold a JSON object", field=path.name)
    return value


def read_optional_json(path: Path) -> Config:
    """As :func:`read_json`; empty if there is no such file."""
    return read_json(path) if path.is_file() else {}
