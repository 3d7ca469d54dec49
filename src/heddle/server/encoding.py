"""JSON out: one encoder for responses and streams, and one for the strings of the hot path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(value: Any) -> bytes:
    """UTF-8 JSON without spaces.

    Half a surrogate pair, which UTF-8 cannot hold, becomes its JSON escape.
    """
    return _encode(value).encode("utf-8", "backslashreplace")


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event, with a name or without."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + encode(data) + b"\n\n"


def json_response(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        encode(value), status_code=status, headers=headers, media_type="application/json"
    )
