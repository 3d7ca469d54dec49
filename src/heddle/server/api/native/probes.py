"""Health routes for supervisors, such as Kubernetes' probes. They need no key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotation
from starlette.responses import Response  # noqa: TC002 - FastAPI reads the annotation

from heddle.server.http.encoding import json_response
from heddle.server.http.stopping import is_stopping

if TYPE_CHECKING:
    from heddle.server.generate.service import Service


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.get("/health/live", responses={503: {"description": "Replace the process."}})
    @router.head("/health/live", include_in_schema=False)
    async def live() -> Response:
        """Report 503 if only a new process helps: an engine thread is stuck for long, or dead.

        A poisoned model does not count: it can be loaded again.
        """
        alive = service.engine.health.live
        return json_response({"status": "ok" if alive else "stuck"}, status=200 if alive else 503)

    @router.get("/health/ready", responses={503: {"description": "Send no requests now."}})
    @router.head("/health/ready", include_in_schema=False)
    async def ready(request: Request) -> Response:
        """Report 503 while the server stops, or while the model is stuck, poisoned or closed."""
        health = service.engine.health
        status = "stopping" if is_stopping(request.app) else health.state.value
        is_ready = health.ready and not is_stopping(request.app)
        return json_response({"status": status}, status=200 if is_ready else 503)

    return router
