"""Frozen settings. Every field has a default and a description; HEDDLE_* variables override.

Resolved once, at the edge (CLI or library caller), and passed down. No room below reads the
environment.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MODEL = "smollm2-135m"

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)
_SIZE_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes from `512M`, `2GiB`, `1.5g` or a plain number (binary units throughout).

    Raises:
        ConfigError: the text is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write for example 512M or 2GiB")
    return int(float(match[1]) * 1024 ** _SIZE_POWER[match[2].lower()])


def _setting(default: Any, doc: str, **extra: Any) -> Any:
    return field(default=default, metadata={"doc": doc, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one model is loaded and run."""

    slots: int = _setting(8, "requests that run at once", low=1, high=1024)
    queue: int = _setting(64, "requests that may wait for a slot", low=0, high=100_000)
    batch_tokens: int = _setting(512, "most tokens computed in one step", low=1, high=65_536)
    threads: int = _setting(0, "compute threads; 0 takes the cores this process may use", low=0)
    context: int = _setting(0, "most tokens per sequence; 0 takes the model's own limit", low=0)
    kv_cache: int = _setting(
        0,
        "bytes of KV cache; 0 takes what the slots can fill, at most half the free memory",
        low=0,
        size=True,
    )
    isa: str = _setting(
        "auto",
        "instruction level of the kernels: auto, or one that this machine has",
        choices=("auto", "portable", "avx2", "avx512"),
    )

    def __post_init__(self) -> None:
        _validate(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the HTTP server listens."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8080, "port to listen on; 0 takes a free one", low=0, high=65_535)

    def __post_init__(self) -> None:
        _validate(self)


def _validate(config: EngineConfig | ServerConfig) -> None:
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        low, high = item.metadata.get("low"), item.metadata.get("high")
        choices = item.metadata.get("choices")
        if low is not None and value < low:
            raise ConfigError(f"{item.name} must be at least {low}, got {value}", param=item.name)
        if high is not None and value > high:
            raise ConfigError(f"{item.name} must be at most {high}, got {value}", param=item.name)
        if choices is not None and value not in choices:
            allowed = ", ".join(choices)
            raise ConfigError(
                f"{item.name} must be one of {allowed}, got {value!r}", param=item.name
            )


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where downloads are kept: HEDDLE_HOME, else the user's cache folder."""
    home = environ.get("HEDDLE_HOME")
    if home:
        return Path(home).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("heddle"))
