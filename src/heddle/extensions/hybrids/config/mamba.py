"""Readers of config.json for Mamba-2 layers, shared by all families."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

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
