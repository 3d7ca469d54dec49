"""The routes of `/v1/chat/completions`, with the count of its tokens, and `/v1/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.api.openai.requests import from_chat, from_completion
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from heddle.server.api.openai.token_counts import add_count
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def routes(service: Service, dispatcher: Dispatcher) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Generate the next message of a conversation."""
        return await dispatcher.answer(request, ChatRequest, from_chat)

    add_count(router, service, "/v1/chat/completions/input_tokens", ChatRequest, from_chat)

    @router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue a prompt, or each prompt of a list."""
        return await dispatcher.answer(request, CompletionRequest, from_completion)

    return router
