"""Spans of OpenTelemetry for requests (`--otel-endpoint`)."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.otel.settings:OtelSettings",),
    readers=("heddle.extensions.otel.tracing:tracing_of",),
)
