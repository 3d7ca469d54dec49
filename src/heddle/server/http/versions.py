"""Serves every route with and without `/v1`.

The base URLs of some clients end in `/v1`, and the base URLs of others do not. So each path has a
second spelling: `/chat/completions` is `/v1/chat/completions`, and `/v1/health` is `/health`. If
both spellings are routes, a path stays as it is: `/completions` is llama.cpp's route. The edge
writes the path as the route declares it, so that the check of keys and all later code see one
spelling. The OpenAPI description lists only this spelling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.routing import BaseRoute

_VERSION = "/v1"


class Spellings:
    """Knows the two spellings of each path.

    Attributes:
        paths: the paths of routes, as they are declared.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        """`routes` are all routes of the application."""
        paths = [route.path for route in routes if isinstance(route, Route)]
        self.paths = frozenset(paths)
        self._with = {_first(path[3:]) for path in paths if path.startswith(_VERSION + "/")}
        self._without = {_first(path) for path in paths} - {"", "v1"} - self._with

    def declared(self, path: str) -> str:
        """The path of a request as its route declares it; unchanged without such a route."""
        if path in self.paths:
            return path
        if _first(path) in self._with:
            return _VERSION + path
        short = path.removeprefix(_VERSION)
        return short if short != path and _first(short) in self._without else path


def _first(path: str) -> str:
    """The first segment of a path; empty if the path does not begin with a slash."""
    return path[1:].partition("/")[0] if path.startswith("/") else ""
