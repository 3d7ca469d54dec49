"""Readers of config.json for layers with Mamba or Mamba-2, shared by all families."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError
from heddle.weights.huggingface.values import scaled

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

UNBOUNDED = 1 << 20
"""Most tokens of a sequence. A state sets no limit; llama.cpp's converter writes this number."""

_NO_LIMITS = (
    None,
    [0.0, math.inf],
    [0.0, {"__float__": "Infinity"}],  # as `transformers` 5 writes it
)


def check_mixer(config: Config, activation: str) -> None:
    """Check that steps have no limits, and that the activation under this key is SiLU.

    Raises:
        UnsupportedModelError: they have limits, or it is another one.
    """
    _check(config, "time_step_limit", _NO_LIMITS, "[0, Infinity]")
    _check(config, activation, (None, "silu", "swish"), "silu")


def _check(config: Config, key: str, supported: tuple[object, ...], text: str) -> None:
    value = config.get(key)
    if value not in supported:
        raise UnsupportedModelError(
            f"config.json: {key} {value!r} is not supported; supported: {text}", param=key
        )


def product(config: Config, *keys: str) -> int | None:
    """The product of the whole numbers under `keys`; None if one of them is no whole number."""
    values = [config.get(key) for key in keys]
    whole = [value for value in values if type(value) is int]
    return math.prod(whole) if len(whole) == len(keys) else None


def expanded(config: Config, key: str) -> int | None:
    """The channels of Mamba: the width of the hidden state times the factor under `key`.

    None if one of the two is no number.

    Raises:
        ModelFileError: the factor is negative or too large.
    """
    factor, width = config.get(key, 2), config.get("hidden_size")
    if isinstance(factor, int | float) and type(width) is int:
        return scaled(key, factor, width)
    return None


def step_rank(config: Config, key: str) -> Config:
    """The elements that step sizes are made from: "auto" is a 16th of the hidden state's."""
    rank, width = config.get(key, "auto"), config.get("hidden_size")
    if rank == "auto" and type(width) is int:
        rank = -(-width // 16)
    return {"state.step_rank": rank}
