"""The setting of the sight of engines."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SightSettings(ServerSettings):
    """Whether the server records what its engines do."""

    sight: bool = setting(
        True,
        "logging",
        "record the last minute of steps for GET /v1/engine/events; off = 501",
    )
