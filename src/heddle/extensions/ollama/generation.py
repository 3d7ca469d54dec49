"""The routes of `/api/chat` and `/api/generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.extensions.ollama.errors import OllamaError
from heddle.extensions.ollama.requests import from_chat, from_generate
from heddle.extensions.ollama.schemas import ChatRequest, GenerateRequest
from heddle.server.http.schema import takes

if TYPE_CHECKING:
    from heddle.extensions.ollama.residence import Residence

_UNLOADING: dict[int | str, dict[str, Any]] = {
    403: {
        "model": OllamaError,
        "description": "A body without a prompt loads or unloads its model, which only admins may.",
    }
}


def routes(residence: Residence) -> APIRouter:
    """The routes of one application."""
    router = APIRouter()

    @router.post("/api/chat", openapi_extra=takes(ChatRequest), responses=_UNLOADING)
    async def chat(request: Request) -> Response:
        """Generate the next message of a conversation, in the shape of Ollama's API."""
        empty = {"message": {"role": "assistant", "content": ""}}
        return await residence.answer(request, ChatRequest, from_chat, empty)

    @router.post("/api/generate", openapi_extra=takes(GenerateRequest), responses=_UNLOADING)
    async def generate(request: Request) -> Response:
        """Answer a prompt, in the shape of Ollama's API."""
        return await residence.answer(request, GenerateRequest, from_generate, {"response": ""})

    return router
