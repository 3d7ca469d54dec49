"""Every route with `/v1` and without.

Clients disagree on whether a base URL ends in `/v1`. So each path has a second spelling:
`/chat/completions` is `/v1/chat/completions`, and `/v1/health` is `/health`. Everything after this
middleware, the check of keys included, sees the path as its route has it. The OpenAPI description
lists the path once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

_VERSION = "/v1"


class BothSpellings:
    """Writes a request's path as the route has it."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        """`routes` are all of the application."""
        self._app = app
        paths = [route.path for route in routes if isinstance(route, Route)]
        self._with = {_first(path[3:]) for path in paths if path.startswith(_VERSION + "/")}
        self._without = {_first(path) for path in paths} - {"v1"} - self._with

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            scope = {**scope, "path": self._of_route(scope["path"])}
        await self._app(scope, receive, send)

    def _of_route(self, path: str) -> str:
        if _first(path) in self._with:
            return _VERSION + path
        short = path.removeprefix(_VERSION)
        return short if short != path and _first(short) in self._without else path


def _first(path: str) -> str:
    """The first name of a path that begins with a slash, as all names of routes do."""
    return path[1:].partition("/")[0] if path.startswith("/") else ""
