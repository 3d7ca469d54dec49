"""Request ids. Every response has the id of its request in a header."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NAMES = (b"x-request-id", b"request-id")
"""Anthropic's clients read the second header."""


_KEY = "heddle.request_id"
"""Key of the id in a request's ASGI scope."""


def request_id_of(scope: Scope) -> str:
    """The id of a request that has passed the middleware; else an empty text."""
    request_id: str = scope.get(_KEY, "")
    return request_id


def new_request_id() -> str:
    """Make a new unique id."""
    return f"req_{secrets.token_hex(12)}"


def id_headers(request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response that have the id."""
    return [(name, request_id.encode()) for name in _NAMES]


class RequestId:
    """Middleware that adds `x-request-id` to every response: the client's id if it is valid."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if _CLIENT_ID.fullmatch(sent) else new_request_id()
        scope = {**scope, _KEY: request_id}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message.get("headers", ()) if pair[0] not in _NAMES]
                message = {**message, "headers": [*others, *id_headers(request_id)]}
            await send(message)

        await self._app(scope, receive, send_with_id)
