"""Sampling parameters of generation_config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.weights.generation import Recommended, recommended
from heddle.weights.huggingface.json_files import read_optional_json

if TYPE_CHECKING:
    from pathlib import Path

FILE = "generation_config.json"

_NAMES = {
    name: name
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
}
"""The keys that are sampling parameters, which have the same names here."""

_OF_GREEDY = {"repetition_penalty": "repetition_penalty"}


def read_recommended(folder: Path) -> Recommended:
    """The sampling parameters of a folder.

    With `do_sample` false, `transformers` takes the likeliest token and ignores what concerns a
    draw. Without `do_sample` the other keys count, as in vLLM.

    Raises:
        ModelSourceError, ModelFileError: the file cannot be read, or is not JSON.
    """
    values = read_optional_json(folder / FILE)
    if values.get("do_sample") is not False:
        return recommended(values, _NAMES, FILE)
    values = {"do_sample": 0.0, "repetition_penalty": values.get("repetition_penalty")}
    return recommended(values, {"do_sample": "temperature", **_OF_GREEDY}, FILE)
