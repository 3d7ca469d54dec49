"""Errors in llama.cpp's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from heddle.server.http.error_shape import ErrorDetails, ErrorShape, details

if TYPE_CHECKING:
    from heddle.errors import HeddleError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class NativeFault(ErrorDetails):
    code: int = Field(description="The HTTP status.")
    message: str
    type: str
    param: str | None = Field(description="The field at fault; null if no field is at fault.")


class NativeError(BaseModel):
    """An error in llama.cpp's shape, with the field at fault."""

    error: NativeFault


def native_error_body(error: HeddleError) -> dict[str, Any]:
    """The error in llama.cpp's shape."""
    kind = _TYPES.get(error.status, error.kind)
    fields = {"code": error.status, "message": error.message, "type": kind, "param": error.param}
    return {"error": fields | details(error)}


SHAPE = ErrorShape(native_error_body, NativeError)
