"""Settings of adapters."""

from dataclasses import dataclass

from heddle.config import EngineSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings(EngineSettings):
    """Adapters of a process, and the memory that they may take."""

    lora: tuple[str, ...] = setting(
        (),
        "model",
        "adapters (LoRA) that requests may name, each NAME=PATH or NAME=ORG/REPO, separated by"
        " commas; repeatable",
        fixed=True,
    )
    lora_memory: int = setting(
        1024**3,
        "memory",
        "memory for adapters of a model; beyond it those that were used least recently are put out"
        " and loaded again when a request names them",
        low=1,
        size=True,
        fixed=True,
    )
