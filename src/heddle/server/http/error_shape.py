"""The shape of an API's errors: their JSON and its schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.errors import HeddleError


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The JSON of an API's errors.

    Attributes:
        body: makes the JSON of an error.
        schema: schema of this JSON.
    """

    body: Callable[[HeddleError], dict[str, Any]]
    schema: type[BaseModel]


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None = Field(description="The field at fault; null if no field is at fault.")
    code: str


class ErrorBody(BaseModel):
    """An error, in the shape of OpenAI's API. It is also the default shape of other APIs."""

    error: ErrorFields


def error_body(error: HeddleError) -> dict[str, Any]:
    """The JSON of an error, for responses and streams."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


DEFAULT = ErrorShape(error_body, ErrorBody)
"""The shape of errors for APIs without their own shape and for unknown paths."""
