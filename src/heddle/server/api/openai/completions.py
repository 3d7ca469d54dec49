"""The routes of `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.api.openai.requests import from_chat, from_completion
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def routes(service: Service, dispatcher: Dispatcher) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """The next message of a conversation."""
        translate = partial(from_chat, service=service, scope=request.scope)
        wanted, writer = await service.bodies.take(request, ChatRequest, translate)
        return await dispatcher.answer(request, writer, wanted)

    @router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Text that goes on after a prompt, or after each of several."""
        translate = partial(from_completion, service=service)
        wanted, writer = await service.bodies.take(request, CompletionRequest, translate)
        return await dispatcher.answer(request, writer, wanted)

    return router
