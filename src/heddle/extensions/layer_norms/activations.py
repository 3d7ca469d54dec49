"""The activation of a feed-forward layer without gates, where config.json calls it otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.errors import UnsupportedModelError

if TYPE_CHECKING:
    from heddle.weights.huggingface.json_files import Config

NAMES = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
}
"""Names of `transformers`, and those of :meth:`heddle.models.ops.Ops.activate`."""
SUPPORTED = tuple(dict.fromkeys(NAMES.values()))


def activation_of(config: Config, key: str, default: str) -> Config:
    """The activation that config.json has under `key`; `default` is a name of `transformers`.

    Raises:
        UnsupportedModelError: it is another one.
    """
    value = config.get(key, default)
    if not isinstance(value, str) or value not in NAMES:
        raise UnsupportedModelError(
            f"config.json: {key} {value!r} is not supported; supported: {', '.join(NAMES)}",
            param=key,
        )
    return {"activation": NAMES[value]}


def require(config: Config, key: str, *, value: object) -> None:
    """Raise UnsupportedModelError if config.json has another value than `value` under `key`."""
    if config.get(key, value) != value:
        raise UnsupportedModelError(
            f"config.json: {key} {config[key]!r} is not supported; supported: {value!r}", param=key
        )
