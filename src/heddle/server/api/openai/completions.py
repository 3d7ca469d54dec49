"""The routes of `/v1/chat/completions`, with the count of its tokens, and `/v1/completions`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.api.openai.requests import from_chat, from_completion
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from heddle.server.http.encoding import json_response
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from starlette.types import Scope

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Served, Service


class TokenCount(BaseModel):
    """Response of `POST /v1/chat/completions/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: int


def routes(service: Service, dispatcher: Dispatcher) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Generate the next message of a conversation."""
        return await dispatcher.answer(request, ChatRequest, from_chat)

    @router.post(
        "/v1/chat/completions/input_tokens",
        response_model=TokenCount,
        openapi_extra=takes(ChatRequest),
    )
    async def input_tokens(request: Request) -> Response:
        """Count the prompt tokens of a conversation, as llama.cpp does."""
        count = partial(_count, scope=request.scope)
        tokens = await service.take(request, ChatRequest, count)
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})

    @router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue a prompt, or each prompt of a list."""
        return await dispatcher.answer(request, CompletionRequest, from_completion)

    return router


def _count(body: ChatRequest, served: Served, scope: Scope) -> int:
    request, _ = from_chat(body, served, scope)
    return len(request.prompts[0])
