"""Turns errors into responses, in the shape of the request's API."""

from __future__ import annotations

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
from heddle.server.http.fields import TEXT, UNSUPPORTED
from heddle.server.http.record import record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI
    from pydantic import ValidationError
    from starlette.requests import Request
    from starlette.types import Scope

    from heddle.server.http.error_shape import ErrorShape

_MOST_FAULTS = 1000
"""Most faults of a body to look into: pydantic makes objects of all faults at once."""

_PYDANTIC = re.compile(
    r"^\w+ should (be|have|match) (.*?)(?: after validation, not \d+)?$", re.DOTALL
)
"""Pydantic's messages about an invalid value. The groups omit the type name that begins each."""

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def error_response(error: HeddleError, scope: Scope) -> Response:
    """The response for an error, in the shape of the request's API."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    shapes: ErrorShapes | None = getattr(scope["app"].state, "error_shapes", None)
    shape = DEFAULT if shapes is None else shapes.of(scope["path"])
    return json_response(shape.body(error), status=error.status, headers=headers)


class ErrorShapes:
    """The error shape of each path."""

    def __init__(self, shapes: Sequence[tuple[str, ErrorShape]]) -> None:
        """`shapes` holds pairs of a route's path pattern and its error shape."""
        self._shapes = [(compile_path(pattern)[0], shape) for pattern, shape in shapes]

    def of(self, path: str) -> ErrorShape:
        """The shape of errors at a path."""
        found = (shape for pattern, shape in self._shapes if pattern.match(path))
        return next(found, DEFAULT)


def from_validation(error: ValidationError) -> InvalidRequestError:
    """The error for an invalid body. It names the first field at fault and its value."""
    if error.error_count() > _MOST_FAULTS:
        return InvalidRequestError(
            f"the body has {error.error_count()} unknown or invalid fields; send only fields that"
            " the API reference lists"
        )
    faults = error.errors(include_url=False)
    first = next((fault for fault in faults if TEXT not in fault["loc"]), faults[0])
    kind, param = first["type"], _path(first["loc"])
    if kind == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON: {first['ctx']['error']}")
    if not param and kind != UNSUPPORTED:
        return InvalidRequestError(
            f"the body must be a JSON object, got {reprlib.repr(first['input'])}"
        )
    if kind == "extra_forbidden":
        return UnsupportedParameterError(f"unknown parameter: {param}", param=param)
    if kind == "missing":
        return InvalidRequestError(f"missing required parameter: {param}", param=param)
    value = reprlib.repr(first["input"])
    if kind == UNSUPPORTED:
        name = param or "the body"
        text = f"{name} {first['msg']}, got {value}"
        return UnsupportedParameterError(text, param=param or None)
    expected = _PYDANTIC.sub(r"must \1 \2", first["msg"])
    return InvalidRequestError(f"{param} {expected}, got {value}", param=param)


def _path(location: tuple[int | str, ...]) -> str:
    """Write `("messages", 0, "content", "<str>")` as `messages[0].content`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            path += f".{step}" if path else step
    return path


def install(app: FastAPI) -> None:
    """Add handlers that answer every error in the shape of its API."""
    app.add_exception_handler(HeddleError, _on_heddle_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)


def refuse(request: Request, error: HeddleError) -> Response:
    """The response for an error. The request's record gets the error."""
    record_of(request.scope).fail(error)
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
    response = refuse(request, shaped)
    response.headers.update(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(_methods_at(request))
    return response


def _methods_at(request: Request) -> list[str]:
    """The methods of all routes at the request's path. The exception knows only one route."""
    scopes = [{**request.scope, "method": method} for method in _METHODS]
    return [
        scope["method"]
        for scope in scopes
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]


async def _on_client_gone(request: Request, _error: Exception) -> Response:
    """A response that nobody reads. 499 is nginx's status for a client that has left."""
    record_of(request.scope).leave()
    return Response(status_code=499)


def stopping() -> EngineClosedError:
    """The error of an answer that the server cancels because it stops."""
    return EngineClosedError("the server is stopping; try again when it is running again")
