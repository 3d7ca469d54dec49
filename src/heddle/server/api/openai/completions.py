"""OpenAI's two endpoints that generate: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.api.openai.completion_writers import ChatAnswer, CompletionAnswer
from heddle.server.api.openai.schemas import ChatRequest, CompletionRequest, takes
from heddle.server.generate import request as intake

if TYPE_CHECKING:
    from heddle.server.generate.dispatch import Answering
    from heddle.server.generate.request import Job
    from heddle.server.generate.service import Service


def routes(service: Service, answering: Answering) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()
    bodies = service.bodies

    def chat_job(asked: ChatRequest) -> Job:
        return intake.chat_job(asked, service)

    def completion_job(asked: CompletionRequest) -> Job:
        return intake.completion_job(asked, service)

    tokenizer = service.engine.model.tokenizer

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """The next message of a conversation."""
        job = await bodies.take(request, ChatRequest, chat_job)
        return await answering.answer(request, ChatAnswer(job.model, tokenizer, job.options), job)

    @router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Text that goes on after a prompt, or after each of several."""
        job = await bodies.take(request, CompletionRequest, completion_job)
        writer = CompletionAnswer(job.model, tokenizer, job.options, job.n)
        return await answering.answer(request, writer, job)

    return router
