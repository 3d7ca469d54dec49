"""Health routes for supervisors, such as Kubernetes' probes. They need no key."""

from __future__ import annotations

from asyncio import to_thread
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotation
from starlette.responses import Response  # noqa: TC002 - FastAPI reads the annotation

from heddle.errors import ModelUnloadedError
from heddle.server.http.edge import is_stopping
from heddle.server.http.encoding import json_response

if TYPE_CHECKING:
    from heddle.server.generate.service import Service


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.get("/health", responses={503: {"description": "The engine has stopped or failed."}})
    @router.head("/health", include_in_schema=False)  # some health checkers send HEAD
    async def health(request: Request) -> Response:
        """Report 200 while engines serve requests, 503 after one has stopped or failed.

        A server that stops reports 503, too.

        `model_file` tells whether the file of the default model has changed on disk since it was
        loaded. Answers do not depend on the changed file, because the model is in memory.
        """
        engines = service.registry.engines
        for engine in engines.values():
            if (poison := engine.health.poison) is not None:
                report = {"status": "poisoned", "reason": poison.reason}
                return json_response(report, status=503)
        if is_stopping(request.app):
            return json_response({"status": "stopping"}, status=503)
        if service.registry.closed or any(engine.closed for engine in engines.values()):
            return json_response({"status": "stopped"}, status=503)
        default = engines.get(service.registry.default)
        # In a thread: a file system may be slow.
        file = None if default is None else await to_thread(default.model.file_state)
        return json_response({"status": "ok"} | ({} if file is None else {"model_file": file}))

    @router.get("/health/live", responses={503: {"description": "Replace the process."}})
    @router.head("/health/live", include_in_schema=False)
    async def live() -> Response:
        """Report 503 if only a new process helps: an engine thread is stuck for long, or dead.

        A poisoned model does not count: it can be loaded again.
        """
        alive = all(engine.health.live for engine in service.registry.engines.values())
        return json_response({"status": "ok" if alive else "stuck"}, status=200 if alive else 503)

    @router.get("/health/ready", responses={503: {"description": "Send no requests now."}})
    @router.head("/health/ready", include_in_schema=False)
    @router.get("/ready", include_in_schema=False)  # the name that some supervisors ask for
    @router.head("/ready", include_in_schema=False)
    async def ready(request: Request, model: str | None = None) -> Response:
        """Report 503 while the server stops, or while no model can answer.

        A model that is stuck, poisoned or closed cannot. With `model`, only this one counts.
        """
        status, is_ready = _readiness(service, model)
        if is_stopping(request.app):
            status, is_ready = "stopping", False
        return json_response({"status": status}, status=200 if is_ready else 503)

    return router


def _readiness(service: Service, name: str | None) -> tuple[str, bool]:
    """The state of the named model, else of the best one; and whether it can answer."""
    engines = service.registry.engines
    if name is not None:
        try:
            engines = {name: service.probed(name)}
        except ModelUnloadedError:  # a request waits for its load
            return "ok", True
    if not engines:  # models of `autoload` are loaded on demand
        return ("ok", True) if service.registry.config.autoload else ("no model", False)
    healths = [engine.health for engine in engines.values()]
    best = next((health for health in healths if health.ready), healths[0])
    return best.state.value, best.ready
