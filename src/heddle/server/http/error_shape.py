"""The shape of an API's errors: their JSON and its schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from heddle.errors import ContextLengthError, NonFiniteLogitsError

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


class ErrorDetails(BaseModel):
    """Fields that only some errors have."""

    n_prompt_tokens: int | None = Field(None, description="Tokens of a prompt that is too long.")
    n_ctx: int | None = Field(None, description="Most tokens of a request.")
    logits: dict[str, float | None] | None = Field(
        None, description="Figures of logits, or of hidden states, that are NaN or infinite."
    )


class ErrorFields(ErrorDetails):
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
            **details(error),
        }
    }


def details(error: HeddleError) -> dict[str, Any]:
    """Further fields of an error.

    If the prompt is too long: its size and that of the context, under llama.cpp's names. If logits
    are not finite: their figures.
    """
    if isinstance(error, ContextLengthError) and error.context:
        return {"n_prompt_tokens": error.tokens, "n_ctx": error.context}
    if isinstance(error, NonFiniteLogitsError) and error.logits:
        return {"logits": error.logits}
    return {}


DEFAULT = ErrorShape(error_body, ErrorBody)
"""The shape of errors for APIs without their own shape and for unknown paths."""
