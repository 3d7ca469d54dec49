"""Spans of OpenTelemetry for requests (`--otel-endpoint`)."""

from heddle.doors import Extension

EXTENSION = Extension(readers=("heddle.extensions.otel.tracing:tracing_of",))
