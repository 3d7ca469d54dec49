"""Errors in the shape of Anthropic's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from heddle.server.http.error_shape import ErrorShape

if TYPE_CHECKING:
    from heddle.errors import HeddleError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicFault(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    """An error in Anthropic's shape."""

    type: str = Field(pattern="^error$")
    error: AnthropicFault


def anthropic_error_body(error: HeddleError) -> dict[str, Any]:
    """The error in Anthropic's shape."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, fallback)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


SHAPE = ErrorShape(anthropic_error_body, AnthropicError)
