"""The route of metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from heddle.errors import UnsupportedRouteError
from heddle.extensions.metrics.exposition import Metrics
from heddle.extensions.metrics.settings import MetricsSettings
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()
    exported = Metrics(service.registry, service.backlog, service.config)
    started = {"process-start-time-unix": str(int(time.time()))}  # llama.cpp's header

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Export metrics in Prometheus' text format."""
        if not service.config.of(MetricsSettings).metrics_route:
            raise UnsupportedRouteError(
                "GET /metrics is off on this server; start it without --no-metrics-route"
            )
        content = exported.exposition()
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4, headers=started)

    return [router]


API = Api(_routes)
