"""Request bodies: read up to a limit, declared as JSON, parsed and checked against a schema."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from heddle.errors import BodyTimeoutError, BodyTooLargeError, MediaTypeError
from heddle.server.errors import from_validation

if TYPE_CHECKING:
    from starlette.requests import Request

    from heddle.config import ServerConfig

T = TypeVar("T", bound=BaseModel)

LARGE = 256 * 1024
"""Bytes or characters from which work is moved off the event loop: about 5 ms of parsing or
tokenising, a gap no stream notices."""

_DISCARD = 4
"""A body up to this many times the limit is read to its end and dropped, so that the client is
there to read the refusal; beyond, the connection closes under it."""


async def read(request: Request, schema: type[T], config: ServerConfig) -> T:
    """The body as `schema`. `config` limits its length and the time it may take.

    Raises:
        MediaTypeError: it is not declared as JSON. A browser sends only other types to a foreign
            site without asking first, so this also keeps web pages from using a local server.
        BodyTooLargeError: it is longer than `max_body` bytes.
        BodyTimeoutError: it was not there after `body_timeout` seconds.
        InvalidRequestError: it is no JSON or breaks the schema.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json":
        raise MediaTypeError(f"Content-Type must be application/json, got {declared!r}")
    try:
        async with asyncio.timeout(config.body_timeout):
            raw = await _bytes(request, config.max_body)
    except TimeoutError:
        raise BodyTimeoutError(
            f"the body did not arrive within {config.body_timeout} seconds; send it faster, or"
            " raise the setting `body_timeout`"
        ) from None
    try:
        if len(raw) < LARGE:
            return schema.model_validate_json(raw)
        return await asyncio.to_thread(schema.model_validate_json, raw)
    except ValidationError as error:
        raise from_validation(error) from None


async def _bytes(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            parts.append(part)
        elif size > limit * _DISCARD:
            break
    if size > limit:
        raise BodyTooLargeError(f"the body must be at most {limit} bytes long")
    return b"".join(parts)
