"""What config.json says of Granite's hybrids in keys of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

HYBRID = "granitemoehybrid"


def sizes(config: Config) -> Config:
    """The width of the recurrence, and whether attention has positions.

    Raises:
        UnsupportedModelError: step sizes have a limit, or positions have a type that is not known.
    """
    found: Config = {}
    expand, width = config.get("mamba_expand", 2), config.get("hidden_size")
    if isinstance(expand, int | float) and isinstance(width, int):
        found["state.inner"] = int(expand * width)
    limits = config.get("time_step_limit")
    if limits is not None and limits != [0.0, math.inf]:
        raise UnsupportedModelError(
            f"config.json: time_step_limit {limits!r} is not supported; supported: [0, Infinity]",
            param="time_step_limit",
        )
    positions = config.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise UnsupportedModelError(
            f"config.json: position_embedding_type {positions!r} is not supported; supported: rope,"
            " nope",
            param="position_embedding_type",
        )
    if positions != "rope":
        found["rope.layer_period"] = 1  # no layer has positions
    return found
