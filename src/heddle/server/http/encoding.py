"""JSON out: one encoder for responses and streams, and one for the strings of the hot path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(value: Any) -> bytes:
    """UTF-8 JSON without spaces.

    Half a surrogate pair, which UTF-8 cannot hold, becomes its JSON escape.
    """
    return _encode(value).encode("utf-8", "backslashreplace")


def joined(fields: Mapping[str, Any], **encoded: bytes) -> bytes:
    """JSON of an object with `fields` (at least one), and with values that are JSON already."""
    parts = [encode(fields)[:-1]]
    for name, value in encoded.items():
        parts += [b',"', name.encode(), b'":', value]
    return b"".join(parts) + b"}"


def array(encoded: Iterable[bytes]) -> bytes:
    """JSON of an array whose elements are JSON already."""
    return b"[" + b",".join(encoded) + b"]"


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event, with a name or without."""
    return encoded_event(encode(data), name)


def encoded_event(data: bytes, name: str | None = None) -> bytes:
    """As :func:`event`, for data that is JSON already."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + data + b"\n\n"


def json_response(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        encode(value), status_code=status, headers=headers, media_type="application/json"
    )
