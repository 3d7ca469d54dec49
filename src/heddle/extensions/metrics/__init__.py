"""Metrics of models and of their server in Prometheus' format: `GET /metrics`."""

from heddle.doors import Extension

EXTENSION = Extension(apis=("heddle.extensions.metrics.api:API",))
