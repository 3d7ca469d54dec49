"""What requests may name beside a model: engram tables and adapters, of all models of a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.engine.adapters import open_adapters
from heddle.engine.engrams import open_engrams

if TYPE_CHECKING:
    from heddle.config import EngineConfig
    from heddle.engine.adapters import AdapterLibrary
    from heddle.engine.engrams import EngramLibrary


@dataclass(frozen=True, slots=True)
class Libraries:
    """The engram tables and the adapters of a process."""

    engrams: EngramLibrary
    adapters: AdapterLibrary

    @classmethod
    def of(cls, config: EngineConfig) -> Libraries:
        """Those of the settings.

        Raises:
            ConfigError: a setting is wrong.
            EngramError, EngramFileError: a table cannot be read, or is damaged.
        """
        return cls(open_engrams(config), open_adapters(config))
