"""The Grafana dashboard asks for metrics that a server has, with labels that these have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_server import Running

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "deploy" / "grafana" / "heddle.json").read_text("utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
METRIC = re.compile(r"\b(heddle_\w+)(\{[^}]*\})?")
GROUPS = re.compile(r"\bby \(([^)]*)\)")
FROM_PROMETHEUS = {"instance"}  # labels that Prometheus adds


@pytest.fixture
def labels(serve: Callable[..., Running]) -> dict[str, set[str]]:
    """Labels by name of sample, of a server that has computed something."""
    server = serve()
    server.post("/v1/completions", {"prompt": "hello", "max_tokens": 3, "ignore_eos": True})
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_each_metric_and_label_of_the_dashboard_exists(labels: dict[str, set[str]]) -> None:
    for query in queries():
        named = METRIC.findall(query)
        assert named, query
        for name, selector in named:
            assert name in labels, query
            asked = set(re.findall(r"(\w+)=", selector)) - FROM_PROMETHEUS
            assert asked <= labels[name], query
        for group in GROUPS.findall(query):
            asked = set(re.split(r",\s*", group)) - FROM_PROMETHEUS
            assert asked <= labels[named[0][0]], query


def test_variables_of_the_dashboard_are_values_of_labels(labels: dict[str, set[str]]) -> None:
    asked = [one["query"]["query"] for one in variables() if one["type"] == "query"]
    for query in asked:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert match is not None
        assert match[2] in labels[match[1]] | FROM_PROMETHEUS


def test_panels_do_not_overlap_and_use_known_variables() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        own = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not own & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    known = {one["name"] for one in variables()} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) <= known


def variables() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = DASHBOARD["templating"]["list"]
    return listed
