"""Metrics of models and of their server in Prometheus' format: `GET /metrics`."""

from heddle.doors import Extension

EXTENSION = Extension(
    settings=("heddle.extensions.metrics.settings:MetricsSettings",),
    apis=("heddle.extensions.metrics.api:API",),
)
