"""What a rank needs to know before it loads its share, and what it says of itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.config import EngineConfig

if TYPE_CHECKING:
    from heddle.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Setup:
    """What rank 0 tells another rank.

    Attributes:
        rank, ranks: the rank's number, and how many there are.
        path: the model's file or folder.
        files: digest of the files' names, sizes and times.
        config: the settings. `device` is the rank's own, and `kv_cache` its part in bytes.
        folder: a private folder where the ranks meet.
    """

    rank: int
    ranks: int
    path: Path
    files: str
    config: EngineConfig
    folder: Path

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self), default=str).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Setup:
        """What `to_bytes` made."""
        values: dict[str, Any] = json.loads(content)
        config = values.pop("config")
        config["engram"] = tuple(config["engram"])
        return cls(
            **{**values, "path": Path(values["path"]), "folder": Path(values["folder"])},
            config=EngineConfig(**config),
        )


def program_version() -> dict[str, str]:
    """Versions that all ranks must have alike."""
    return {"heddle": version("heddle"), "torch": version("torch")}


def files_digest(checkpoint: Checkpoint) -> str:
    """A digest of the model's files: names, sizes, times of the last change."""
    stamps = sorted((str(path), stamp) for path, stamp in checkpoint.stamps.items())
    return hashlib.sha256(repr(stamps).encode()).hexdigest()
