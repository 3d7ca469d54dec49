"""Readers of the keys of config.json that only Granite's hybrids have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.extensions.hybrids.config.mixers import check_mixer, expanded

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config


def sizes(config: Config) -> Config:
    """The width of the recurrence, and whether attention has positions.

    Raises:
        UnsupportedModelError: step sizes have a limit, or positions have a type that is not known.
    """
    found: Config = {}
    inner = expanded(config, "mamba_expand")
    if inner is not None:
        found["state.inner"] = inner
    check_mixer(config, "hidden_act")
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
