"""The shape of errors: how an API writes one, and the schema that describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.errors import HeddleError


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How an API writes an error.

    Attributes:
        body: the JSON of an error.
        schema: describes that JSON.
    """

    body: Callable[[HeddleError], dict[str, Any]]
    schema: type[BaseModel]


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None = Field(description="the field at fault, if one is")
    code: str


class ErrorBody(BaseModel):
    """An error. OpenAI's API has this shape, and every API without a shape of its own."""

    error: ErrorFields


def error_body(error: HeddleError) -> dict[str, Any]:
    """The error as JSON, the same in a response and in a stream."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


DEFAULT = ErrorShape(error_body, ErrorBody)
"""The shape of errors where no API has another one."""
