"""Tells browsers which web pages may use the server (`--cors`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from heddle.server.http.hints import HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import Headers
    from starlette.types import ASGIApp

_PATTERNS = {"*": ".*", "localhost": r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"}
"""Patterns of origins, by the word that stands for them in the setting."""
_METHODS = ("GET", "POST", "DELETE", "OPTIONS")
_EXPOSED = ("x-request-id", "request-id", "retry-after", "warning", HEADER)


class Cors(CORSMiddleware):
    """Adds the headers that let pages of some origins read answers.

    It allows no credentials. A browser would send the cookies of a login page in front of the
    server, and with `*` any page could then use a visitor's session. API keys need no credentials:
    a page writes them into a header itself.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """`origins` is the setting `cors`."""
        patterns = [_PATTERNS[one] for one in origins if one in _PATTERNS]
        super().__init__(
            app,
            allow_origins=[one for one in origins if one not in _PATTERNS],
            allow_origin_regex="|".join(patterns) or None,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a browser's question before a page's request.

        An origin that is not allowed gets a 200, too. The browser sees that the headers are
        missing, and does not send the request.
        """
        if not self.is_allowed_origin(request_headers["origin"]):
            return Response(headers={"vary": "Origin"})
        return super().preflight_response(request_headers)
