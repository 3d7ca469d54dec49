"""Errors in the shape of Ollama's API: an object with one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from heddle.server.http.error_shape import ErrorShape

if TYPE_CHECKING:
    from heddle.errors import HeddleError


class OllamaError(BaseModel):
    """An error in Ollama's shape."""

    error: str


def ollama_error_body(error: HeddleError) -> dict[str, Any]:
    """The error in Ollama's shape."""
    return {"error": error.message}


SHAPE = ErrorShape(ollama_error_body, OllamaError)
