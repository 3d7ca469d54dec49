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
        shared=True,
    )
    lora_memory: int = setting(
        1024**3,
        "memory",
        "memory for adapters of a model; beyond it those that were used least recently are put out"
        " and loaded again when a request names them",
        low=1,
        size=True,
        shared=True,
    )
    lora_type: str = setting(
        "stored",
        "memory",
        "type of adapters in memory. stored: no value is rounded beyond 16 bits. int8: bytes with a"
        " scale for each row of A and column of B, half the memory, about 1% off",
        choices=("stored", "int8"),
        shared=True,
    )
