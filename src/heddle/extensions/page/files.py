"""The routes of the page's files. They need no key, because a browser opens a page without one.

Each file has a route of its own, so no path of a request names a file of the machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match

from heddle.server.http.access import OpenRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from importlib.resources.abc import Traversable
    from typing import Any

    from starlette.types import Scope

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_START = "index.html"
_SANDBOX = "js/sandbox.js"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What the page may load: its own files and answers of its own server, and nothing inline."""

SANDBOX_POLICY = "default-src 'none'; script-src 'unsafe-eval'; frame-ancestors 'none'"
"""A worker has the policy of its own file. This one may run text as code, and may reach nothing."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page.

    Attributes:
        name: its path below the folder `files`.
        content: its bytes.
    """

    name: str
    content: bytes

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the file's response."""
        return {
            "etag": f'"{hashlib.sha256(self.content).hexdigest()[:32]}"',
            "cache-control": "no-cache",  # browsers keep the file, and ask whether it is current
            "vary": "accept",
            "content-security-policy": SANDBOX_POLICY if self.name == _SANDBOX else POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-resource-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
        }


def page_files() -> list[PageFile]:
    """All files of the page."""
    top = files("heddle.extensions.page") / "files"
    return [PageFile(name, one.read_bytes()) for name, one in sorted(_below(top, ""))]


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _below(one, f"{path}{one.name}/")
        elif one.name.rpartition(".")[2] in _TYPES:
            yield path + one.name, one


class _ForBrowsers(OpenRoute):
    """A route that only requests for HTML take, so that other clients find another route."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See Starlette's routes."""
        match, child = super().matches(scope)
        is_for_browser = "text/html" in Headers(scope=scope).get("accept", "")
        return (match if is_for_browser else Match.NONE), child


def routes() -> APIRouter:
    """The routes of all files, and the page at `/`."""
    router = APIRouter()
    for file in page_files():
        is_start = file.name == _START
        router.add_api_route(
            "/" if is_start else f"/page/{file.name}",
            _serving(file),
            name="page" if is_start else file.name,  # `heddle serve` names the address of `page`
            methods=["GET", "HEAD"],
            include_in_schema=False,
            route_class_override=_ForBrowsers if is_start else OpenRoute,
        )
    return router


def _serving(file: PageFile) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    headers, kind = file.headers, _TYPES[file.name.rpartition(".")[2]]

    async def serve(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if headers["etag"] in known:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=kind)

    return serve
