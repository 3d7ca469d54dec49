"""Settings of extensions, which a config carries beside its own."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.settings import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionSettings:
    """Settings of one extension. Its class derives from the class that the config carries."""

    def __post_init__(self) -> None:
        validate(self)
