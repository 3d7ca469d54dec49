"""Sampling parameters in the `general.sampling.*` keys of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.weights.generation import Recommended, recommended
from heddle.weights.gguf.file import shortest_float

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PREFIX = "general.sampling."

_NAMES = {
    _PREFIX + key: name
    for key, name in {
        "sequence": "samplers",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "xtc_probability": "xtc_probability",
        "xtc_threshold": "xtc_threshold",
        "temp": "temperature",
        "penalty_last_n": "repeat_last_n",
        "penalty_repeat": "repetition_penalty",
        "mirostat": "mirostat",
        "mirostat_tau": "mirostat_tau",
        "mirostat_eta": "mirostat_eta",
    }.items()
}
"""Keys of llama.cpp (`gguf-py/gguf/constants.py`), and the sampling parameters that they are."""


def read_recommended(metadata: Mapping[str, object], path: Path) -> Recommended:
    """The sampling parameters in the metadata of the file at `path`."""
    values = {key: _plain(metadata[key]) for key in _NAMES if key in metadata}
    return recommended(values, _NAMES, str(path))


def _plain(value: object) -> object:
    """Names of samplers as a list; a float as the number that it stands for."""
    if isinstance(value, str):  # "top_k;temperature", as llama.cpp reads it
        return value.split(";")
    return shortest_float(value) if isinstance(value, float) else value
