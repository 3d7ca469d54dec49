"""Refuses new requests while the server stops, and still tells health checkers that it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from heddle.errors import EngineClosedError
from heddle.server.http.access import OPEN_PATHS
from heddle.server.http.errors import refuse

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send


def stop_admission(app: Starlette) -> None:
    """Refuse all requests from now on."""
    app.state.stopping = True


def is_stopping(app: Starlette) -> bool:
    """Whether the server refuses requests because it stops."""
    return getattr(app.state, "stopping", False)


class RefuseWhileStopping:
    """Middleware that answers new requests with 503 while running ones finish."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        new = scope["type"] == "http" and scope["path"] not in OPEN_PATHS
        if new and is_stopping(scope["app"]):
            error = EngineClosedError("the server is stopping; send the request to another one")
            await refuse(Request(scope), error)(scope, receive, send)
            return
        await self._app(scope, receive, send)
