"""The setup that rank 0 sends to each other rank before the rank loads its share."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup that rank 0 sends to another rank.

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
        """The setup that `to_bytes` wrote."""
        values: dict[str, Any] = json.loads(content)
        config = values.pop("config")
        config["engram"] = tuple(config["engram"])
        return cls(
            **{**values, "path": Path(values["path"]), "folder": Path(values["folder"])},
            config=EngineConfig(**config),
        )
