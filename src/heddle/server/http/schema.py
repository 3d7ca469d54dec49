"""The base class of all request schemas, and their entry in the OpenAPI description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, create_model

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S", bound=BaseModel)

MAX_ITEMS = 8192
"""Most messages of a body, and most parts of a message. A body has room for 300,000 messages, which
would take seconds."""


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _Body(dict[str, Any]):
    """The entry of a body, whose schema is made when FastAPI puts the entry into a description.

    The schemas of all bodies take 0.3 s, which a server would wait for at its start.
    """

    def __init__(self, schema: type[BaseModel]) -> None:
        super().__init__(requestBody=None)
        self._schema = schema

    def items(self) -> Any:  # FastAPI reads `openapi_extra` by this method
        content = {"application/json": {"schema": self._schema.model_json_schema()}}
        return {"requestBody": {"required": True, "content": content}}.items()


def takes(schema: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a route that reads its body itself, as a `schema`."""
    return _Body(schema)


def with_fields(schema: type[S], fields: Mapping[str, Any]) -> type[S]:
    """The schema with further fields, under its own name."""
    names: dict[str, Any] = {"__module__": schema.__module__, "__doc__": schema.__doc__}
    complete: type[S] = create_model(schema.__name__, __base__=schema, **names, **fields)
    return complete
