"""The address of the Hugging Face hub, and the folder that keeps its models.

The settings win over the variables, which are those of `huggingface_hub`. An empty variable counts
as not set.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.config import HubConfig
from heddle.folders import user_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ENDPOINT = "https://huggingface.co"
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A hub and the cache of its files.

    Attributes:
        cache: the cache folder, in the layout of `huggingface_hub`.
        endpoint: URL of the hub, without a slash at the end.
        offline: whether only the cache is used.
    """

    cache: Path
    endpoint: str
    offline: bool


def hub_place(
    config: HubConfig = HubConfig(),  # noqa: B008 - frozen
    environ: Mapping[str, str] = os.environ,
) -> HubPlace:
    """The hub and its cache.

    The cache is the setting `hub_cache`, else HF_HUB_CACHE, else HF_HOME/hub, else
    `huggingface/hub` in XDG_CACHE_HOME or ~/.cache.

    Raises:
        ConfigError: a folder begins with the home folder of an unknown user.
    """
    offline = config.offline or environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    endpoint = environ.get("HF_ENDPOINT") or _ENDPOINT
    return HubPlace(_cache(config, environ).absolute(), endpoint.rstrip("/"), offline)


def _cache(config: HubConfig, environ: Mapping[str, str]) -> Path:
    if config.hub_cache:
        return user_path(config.hub_cache, "hub_cache")
    if cache := environ.get("HF_HUB_CACHE"):
        return user_path(cache, "HF_HUB_CACHE")
    if home := environ.get("HF_HOME"):
        return user_path(home, "HF_HOME") / "hub"
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(caches, "XDG_CACHE_HOME") / "huggingface" / "hub"
