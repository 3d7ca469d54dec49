"""The setting of OpenTelemetry."""

from dataclasses import dataclass

from heddle.config import ServerSettings
from heddle.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings(ServerSettings):
    """Settings of the place to which spans go."""

    otel_endpoint: str = setting(
        "",
        "logging",
        "URL of an OpenTelemetry collector (OTLP over HTTP) that gets a span of each request; needs"
        " heddle[otel]; empty = OTEL_EXPORTER_OTLP_ENDPOINT, else no spans",
    )
