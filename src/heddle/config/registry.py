"""Settings of a process that holds several models."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.errors import ConfigError
from heddle.settings import setting, validate


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Settings of the models that a process holds, and for how long."""

    memory: int = setting(
        0,
        "memory",
        "most bytes of memory for all models; to load another model, idle models are unloaded, the"
        " least recently used first; 0 = no limit of this kind",
        low=0,
        size=True,
    )
    models_dir: str = setting(
        "",
        "model",
        "folder with models that requests may load by name; empty = requests load no file",
    )
    hub_models: bool = setting(
        False, "model", "let requests load models of the Hugging Face hub, and so fill the disk"
    )
    autoload: bool = setting(
        False,
        "model",
        "load a known model when a request names it; by default such a request is a 404",
    )
    keep_alive: int = setting(
        0,
        "model",
        "seconds without a request after which a model is unloaded; needs --autoload, so that the"
        " next request loads it again; 0 = never",
        low=0,
    )
    auto_recover: int = setting(
        0,
        "model",
        "how often a poisoned model is loaded again by itself, after 1, 2, 4, ... s; 0 = never",
        low=0,
        high=1000,
    )
    resume_tries: int = setting(
        2,
        "model",
        "how often a request goes on after a step with it has failed, once auto_recover has loaded"
        " its model again; then it ends with an error. 0 = running and waiting requests end when"
        " their model fails",
        low=0,
        high=1000,
    )
    unload_seconds: int = setting(
        30, "model", "most seconds that accepted requests may take while their model unloads", low=0
    )

    def __post_init__(self) -> None:
        validate(self)
        if self.keep_alive and not self.autoload:
            raise ConfigError(
                f"keep_alive {self.keep_alive} unloads idle models, and no request would load them"
                " again; set autoload (--autoload) too",
                param="keep_alive",
            )
