"""Reads what `GET /metrics` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from fake_server import Running


def scrape(server: Running) -> dict[str, float]:
    """Samples by name, labels appended. The label of the only model is left out."""
    response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        "/".join(
            (sample.name, *(v for k, v in sample.labels.items() if k != "model"))
        ): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
