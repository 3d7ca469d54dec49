"""Routes that show what engines do: events, the prefix tree, the limits of the machine."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import (
    AuthenticationError,
    ForbiddenError,
    InvalidRequestError,
    ModelUnavailableError,
    UnsupportedRouteError,
)
from heddle.extensions.sight.settings import SightSettings
from heddle.extensions.sight.tree import described
from heddle.extensions.sight.viewers import EventsOf, Viewer, Viewers
from heddle.server.generate.api import Api
from heddle.server.http.access import ADMIN, check_admin
from heddle.server.http.edge import is_stopping
from heddle.server.http.encoding import EVENTS, json_response
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.engine.loop import EngineLoop
    from heddle.extensions.sight.recorder import Recorder
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service

_WRONG: dict[int | str, dict[str, Any]] = {400: {"description": "A parameter is no number."}}
_OFF: dict[int | str, dict[str, Any]] = {
    501: {"description": "The server records nothing (`--no-sight`)."}
}


class Measure(Schema):
    """Body of `POST /v1/engine/limits`."""

    model: str | None = None


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()
    viewers = Viewers(service.registry) if service.config.of(SightSettings).sight else None

    def watching() -> Viewers:
        if viewers is None:
            raise UnsupportedRouteError(
                "this server records no steps; start it without --no-sight", param="sight"
            )
        return viewers

    def watched(model: str | None) -> tuple[Engine, Recorder]:
        engine = service.probed(model)
        recorder = watching().recorder(engine)
        if recorder is None:
            raise ModelUnavailableError("the model is not watched yet; try again", retry_after=1.0)
        return engine, recorder

    @router.get(
        "/v1/engine/events",
        responses={
            **_OFF,
            **_WRONG,
            200: {"content": {EVENTS: {}}, "description": "Until the client leaves."},
            429: {"description": "There are too many viewers."},
        },
    )
    async def events(
        request: Request,
        model: str | None = None,
        seconds: str = "",
    ) -> Response:
        """Stream what engines do: steps, requests, rates, memory. It shows no prompts.

        With `seconds`, the stream ends after so many seconds.
        """
        shown, name = watching(), service.name_of(model) if model else ""
        lasts = _number("seconds", seconds, 0.001, 86_400.0) if seconds else None
        viewer = Viewer(name, admin=_is_admin(request))
        shown.add(viewer, lambda: is_stopping(request.app))
        return EventsOf(shown, viewer, lasts)

    @router.get("/v1/prefix_cache/tree", responses=_OFF | _WRONG)
    async def tree(model: str | None = None, most: str = "500") -> Response:
        """Show the prefix tree of a model: sizes, ages and hits of runs of tokens.

        It has at most `most` runs, the most recently used.
        """
        limit = int(_number("most", most, 1, 2000))
        engine, recorder = watched(model)
        page_bytes = engine.model.executor.memory.token_page_bytes

        def walk(loop: EngineLoop) -> dict[str, Any]:
            return described(loop.cache.prefixes.tree, page_bytes, limit, recorder.used_at)

        walked = engine.thread.call_later(walk)
        return json_response(await asyncio.wrap_future(walked))

    @router.post(
        "/v1/engine/limits", openapi_extra=takes(Measure), dependencies=[ADMIN], responses=_OFF
    )
    async def limits(request: Request) -> Response:
        """Measure the peak rates of the machine. The model's streams pause for some seconds."""
        body = await service.bodies.take(request, Measure, lambda body: body)
        engine, recorder = watched(body.model)
        executor = engine.model.executor
        measured = engine.thread.call_later(lambda _: executor.measure_limits())
        recorder.limits = best = await asyncio.wrap_future(measured)
        return json_response(
            {
                "peak_bytes_per_second": best.memory_rate,
                "peak_operations_per_second": best.multiply_rate,
            }
        )

    return [router]


def _number(name: str, text: str, least: float, most: float) -> float:
    """The number of a query parameter.

    Raises:
        InvalidRequestError: it is none, or out of range.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InvalidRequestError(
            f"{name} must be a number from {least:g} to {most:g}, got {text[:50]!r}", param=name
        )
    return number


def _is_admin(request: Request) -> bool:
    """Whether a request may use admin routes."""
    try:
        check_admin(request)
    except (AuthenticationError, ForbiddenError):
        return False
    return True


API = Api(_routes)
