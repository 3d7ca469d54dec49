"""The base of all bodies, and what a route says of its own."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_ITEMS = 8192
"""Messages, and parts of one. A body may hold 300,000, which would be seconds of work."""


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def takes(schema: type[Schema]) -> dict[str, Any]:
    """The OpenAPI entry of a route that reads its body, a `schema`, itself."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
