"""Metrics of replicas as text in Prometheus' format: of one, and of all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from prometheus_client import Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from starlette.applications import Starlette
    from starlette.types import Message, Scope

PATH = "/metrics"
"""The route of metrics."""
LABEL = "replica"
"""The label that tells which replica a figure is of."""


async def exposition_of(app: Starlette) -> str:
    """The metrics of one server, as its route gives them to a client with a key.

    Raises:
        HeddleError: the route is off.
        HTTPException: no extension has the route.
    """
    parts: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "app": app,
    }
    # The router is inside of the server's middleware, which asks clients for keys and logs
    # requests. FastAPI's routes need this part of it.
    await AsyncExitStackMiddleware(app.router)(scope, receive, send)
    return b"".join(parts).decode()


def merged(expositions: Mapping[str, str]) -> bytes:
    """The metrics of all replicas in one exposition, with a label that names the replica.

    Args:
        expositions: by id of the replica.
    """
    families: dict[str, Metric] = {}
    for replica, exposition in expositions.items():
        for family in text_string_to_metric_families(exposition):
            known = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            known.samples += [
                sample._replace(labels={**sample.labels, LABEL: replica})
                for sample in family.samples
            ]
    count = GaugeMetricFamily("heddle_replicas", "Replicas that told their metrics.")
    count.add_metric((), len(expositions))
    return generate_latest(_Families([*families.values(), count]))


class _Families:
    """As much of a registry as `generate_latest` reads."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
