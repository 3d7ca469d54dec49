"""Errors as responses, in the shape of the API that a path belongs to."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import reprlib
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, compile_path

from heddle.errors import (
    AuthenticationError,
    EngineClosedError,
    HeddleError,
    InvalidRequestError,
    UnsupportedParameterError,
)
from heddle.server.http.connection import ClientGoneError
from heddle.server.http.encoding import json_response
from heddle.server.http.error_shape import DEFAULT
from heddle.server.http.fields import UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI
    from pydantic import ValidationError
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from heddle.server.http.error_shape import ErrorShape

log = logging.getLogger(__name__)

_LOG_CHARACTERS = 500
_MOST_FAULTS = 1000
"""Most faults of a body that are inspected: pydantic turns all of them into objects, or none."""

_PYDANTIC = re.compile(
    r"^\w+ should (be|have|match) (.*?)(?: after validation, not \d+)?$", re.DOTALL
)
"""How Pydantic says what a value should be, without the kind of value that it thinks of."""

_SHAPE = "heddle.error_shape"
"""Where a request's ASGI scope has the shape of its errors."""

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def error_response(error: HeddleError, scope: Scope) -> Response:
    """The error in the shape of the API that the request's path belongs to."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    shape: ErrorShape = scope.get(_SHAPE, DEFAULT)
    return json_response(shape.body(error), status=error.status, headers=headers)


class ChooseErrorShape:
    """Finds the API that a request's path belongs to, so that errors have its shape."""

    def __init__(self, app: ASGIApp, shapes: Sequence[tuple[str, ErrorShape]]) -> None:
        """`shapes` are path patterns of routes, each with its shape."""
        self._app = app
        self._shapes = [(compile_path(pattern)[0], shape) for pattern, shape in shapes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            found = (shape for pattern, shape in self._shapes if pattern.match(scope["path"]))
            scope = {**scope, _SHAPE: next(found, DEFAULT)}
        await self._app(scope, receive, send)


def from_validation(error: ValidationError) -> InvalidRequestError:
    """The first fault of a body, with the name of the field and its value."""
    if error.error_count() > _MOST_FAULTS:
        return InvalidRequestError(
            f"the body has {error.error_count()} unknown or wrong fields; send those that the API"
            " reference lists"
        )
    first = error.errors(include_url=False)[0]
    kind, param = first["type"], _path(first["loc"])
    if kind == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON: {first['ctx']['error']}")
    if not param:
        return InvalidRequestError(
            f"the body must be a JSON object, got {reprlib.repr(first['input'])}"
        )
    if kind == "extra_forbidden":
        return UnsupportedParameterError(f"unknown parameter: {param}", param=param)
    if kind == "missing":
        return InvalidRequestError(f"missing required parameter: {param}", param=param)
    value = reprlib.repr(first["input"])
    if kind == UNSUPPORTED:
        return UnsupportedParameterError(f"{param} {first['msg']}, got {value}", param=param)
    expected = _PYDANTIC.sub(r"must \1 \2", first["msg"])
    return InvalidRequestError(f"{param} {expected}, got {value}", param=param)


def _path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "content", "<str>")` as `messages[0].content`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            path += f".{step}" if path else step
    return path


def install(app: FastAPI) -> None:
    """Answer every error of the application in the shape of its API."""
    app.add_exception_handler(HeddleError, _on_heddle_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)


def refuse(request: Request, error: HeddleError) -> Response:
    """The error as a response, and as a line in the log."""
    _log(request, f"{error.status} {error.message}")
    return error_response(error, request.scope)


async def _on_heddle_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeddleError)
    return refuse(request, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    shaped = InvalidRequestError(f"{status.phrase}: {request.method} {request.url.path}")
    shaped.status = status
    shaped.code = status.phrase.lower().replace(" ", "_")
    response = error_response(shaped, request.scope)
    response.headers.update(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(_methods_at(request))
    return response


def _methods_at(request: Request) -> list[str]:
    """Methods that the request's path has. The exception knows those of one route alone."""
    asked = [{**request.scope, "method": method} for method in _METHODS]
    return [
        scope["method"]
        for scope in asked
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]


async def _on_client_gone(request: Request, _error: Exception) -> Response:
    """An answer that no one reads. nginx uses this status for the case."""
    _log(request, "the client went away")
    return Response(status_code=499)


def _log(request: Request, what: str) -> None:
    """One line, of bounded length: paths and messages hold what clients chose to send."""
    line = f"{request.method} {request.url.path}: {what}"[:_LOG_CHARACTERS]
    log.info("%s", line.encode("unicode_escape").decode())


def stopping() -> EngineClosedError:
    """The error of an answer that the server cancels."""
    return EngineClosedError("the server is stopping; try again when it is back")


class AnswerBugs:
    """Answers any other exception, and requests that the server cancels when it stops.

    Starlette would do so outside of all middleware: without an id and without CORS headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:  # the server stops and has cancelled this task
            if not begun:
                await error_response(stopping(), scope)(scope, receive, send)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            log.exception("%s %s failed", scope["method"], ascii(scope["path"]))
            shaped = HeddleError(f"internal error: {type(error).__name__}")
            await error_response(shaped, scope)(scope, receive, send)
