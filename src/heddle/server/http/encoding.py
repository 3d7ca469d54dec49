"""Encodes JSON and server-sent events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EVENTS = "text/event-stream"
"""Media type of server-sent events."""
LINES = "application/x-ndjson"
"""Media type of JSON documents, each in its own line."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(value: Any) -> bytes:
    """Encode `value` as UTF-8 JSON without spaces.

    UTF-8 cannot encode half of a surrogate pair, so its JSON escape is written instead.
    """
    return _encode(value).encode("utf-8", "backslashreplace")


def joined(fields: Mapping[str, Any], **encoded: bytes) -> bytes:
    """Encode an object of `fields`, at least one, and of `encoded` values, which are JSON."""
    parts = [encode(fields)[:-1]]
    for name, value in encoded.items():
        parts += [b',"', name.encode(), b'":', value]
    return b"".join(parts) + b"}"


def array(encoded: Iterable[bytes]) -> bytes:
    """Encode an array of elements that are JSON."""
    return b"[" + b",".join(encoded) + b"]"


def event(data: Any, name: str | None = None) -> bytes:
    """Encode a server-sent event. `name` is its type; None: no type."""
    if name is None:
        return b"data: " + encode(data) + b"\n\n"
    return encoded_event(encode(data), name)


def encoded_event(data: bytes, name: str) -> bytes:
    """Make a server-sent event of data that is JSON; see :func:`event`."""
    return f"event: {name}\ndata: ".encode() + data + b"\n\n"


def line(data: Any) -> bytes:
    """Encode `data` as JSON in its own line."""
    return encode(data) + b"\n"


def json_response(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        encode(value), status_code=status, headers=headers, media_type="application/json"
    )
