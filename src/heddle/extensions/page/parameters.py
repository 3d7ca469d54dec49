"""The route of sampling parameters: what the page offers, from the server's own table."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.parameters import Api, Integer, Member, Number, Strings, Switch
from heddle.sampling_params import all_parameters
from heddle.server.http.encoding import json_response

if TYPE_CHECKING:
    from heddle.parameters import Parameter, ValueKind
    from heddle.server.generate.service import Service

Json = dict[str, Any]


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.get("/page/parameters")
    async def parameters(model: str | None = None) -> Response:
        """List the sampling parameters of chats: meaning, range, and a model's defaults."""
        params = service.served(model).sampling_params()
        rows = [row for row in all_parameters() if Api.CHAT in row.apis]
        return json_response({"data": [_row(row, params.value(row.name)) for row in rows]})

    return router


def _row(row: Parameter, default: object) -> Json:
    """One parameter as the page shows it."""
    return {
        "name": row.name,
        "doc": row.doc,
        "range": row.kind.words,
        "source": row.source,
        "default": _json(default),
        **_editor(row.kind),
    }


def _editor(kind: ValueKind) -> Json:
    """The kind of field that edits a value, and its bounds."""
    if isinstance(kind, Number):
        low = kind.low if kind.extra is None else min(kind.low, kind.extra)
        high = {} if abs(kind.high) > 2**53 else {"max": kind.high}
        least = {} if abs(low) > 2**53 else {"min": low}
        return {"kind": "integer" if isinstance(kind, Integer) else "number", **least, **high}
    if isinstance(kind, Switch):
        return {"kind": "switch"}
    if isinstance(kind, Member):
        return {"kind": "choice", "choices": list(kind.values)}
    return {"kind": "strings" if isinstance(kind, Strings) else "json"}


def _json(value: object) -> object:
    """A default as JSON; None for a value that JSON has no form of."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_json(one) for one in value]
    return value if isinstance(value, (bool, int, float, str)) else None
