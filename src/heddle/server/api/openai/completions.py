"""The routes of `/v1/chat/completions`, with the count of its tokens, and `/v1/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from heddle.server.api.openai.requests import from_chat, from_completion
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest
from heddle.server.api.openai.token_counts import add_count

if TYPE_CHECKING:
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def routes(service: Service, dispatcher: Dispatcher) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    path = "/v1/chat/completions"
    dispatcher.add_route(
        router, path, ChatRequest, from_chat, "Generate the next message of a conversation."
    )
    add_count(router, service, f"{path}/input_tokens", ChatRequest, from_chat)
    dispatcher.add_route(
        router,
        "/v1/completions",
        CompletionRequest,
        from_completion,
        "Continue a prompt, or each prompt of a list.",
    )
    return router
