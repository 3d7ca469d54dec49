"""The settings of a model as a part of a message."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import msgspec

from heddle.config import EngineConfig, EngineSettings
from heddle.extensions.processes.children.messages import Part
from heddle.settings import of_extensions


class SentConfig(Part, frozen=True):
    """A config. Settings of extensions travel by the name of their class.

    Attributes:
        own: the config without settings of extensions.
        extensions: their values. The child takes only classes that its extensions declare.
    """

    own: EngineConfig
    extensions: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, config: EngineConfig) -> SentConfig:
        """The config as a part of a message."""
        parts = {_name(type(one)): asdict(one) for one in config.extensions}
        return cls(replace(config, extensions=()), parts)

    @property
    def config(self) -> EngineConfig:
        """The config that was sent."""
        kinds = {_name(kind): kind for kind in of_extensions(EngineSettings)}
        parts = (msgspec.convert(part, kinds[name]) for name, part in self.extensions.items())
        return replace(self.own, extensions=tuple(parts))


def _name(kind: type[object]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
