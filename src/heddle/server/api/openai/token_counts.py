"""Counts the prompt tokens of bodies: `/v1/chat/completions/input_tokens` and OpenAI's
`/v1/responses/input_tokens`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request  # noqa: TC002  FastAPI reads annotations of routes
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.generate.request import tokens_in
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import APIRouter
    from starlette.types import Scope

    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served, Service

B = TypeVar("B", bound=BaseModel)


class TokenCount(BaseModel):
    """Response of a route that counts tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


def add_count(
    router: APIRouter,
    service: Service,
    path: str,
    schema: type[B],
    translate: Callable[[B, Served, Scope], tuple[GenerationRequest, object]],
) -> None:
    """Add a route that counts the prompt tokens of a body, which has one prompt."""

    async def input_tokens(request: Request) -> Response:
        """Count the prompt tokens of a conversation."""

        def count(body: B, served: Served) -> int:
            translated, _ = translate(body, served, request.scope)
            return len(tokens_in(translated.prompts[0]))

        tokens = await service.take(request, schema, count)
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})

    router.post(path, response_model=TokenCount, openapi_extra=takes(schema))(input_tokens)
