"""Settings of the place where models come from."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.settings import setting, validate

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """Settings of the hub and of the cache of its models.

    :func:`heddle.hub_place.hub_place` adds the variables of the hub.
    """

    hub_cache: str = setting(
        "",
        "model",
        "folder for models of the Hugging Face hub; empty = HF_HUB_CACHE, else HF_HOME/hub, else"
        " ~/.cache/huggingface/hub",
    )
    offline: bool = setting(
        False,
        "model",
        "take models from the caches only, never from the network (also: HF_HUB_OFFLINE)",
        fixed=True,
    )

    def __post_init__(self) -> None:
        validate(self)
