"""The setting of routes for operators."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(ServerSettings):
    """Whether the route answers."""

    slots_route: bool = setting(True, "logging", "answer GET /slots; off = 501")
