"""The setting of metrics."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings(ServerSettings):
    """Whether the route answers."""

    metrics_route: bool = setting(True, "logging", "answer GET /metrics; off = 501")
