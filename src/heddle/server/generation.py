"""OpenAI's two endpoints that generate: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server import intake
from heddle.server.answers import ChatAnswer, CompletionAnswer
from heddle.server.schemas import ChatRequest, CompletionRequest, takes

if TYPE_CHECKING:
    from heddle.server.answering import Answering
    from heddle.server.intake import Job
    from heddle.server.service import Service


def routes(service: Service, answering: Answering) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()
    bodies = service.bodies

    def chat_job(asked: ChatRequest) -> Job:
        return intake.chat_job(asked, service)

    def completion_job(asked: CompletionRequest) -> Job:
        return intake.completion_job(asked, service)

    name, tokenizer = service.engine.model.info.id, service.engine.model.tokenizer

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """The next message of a conversation."""
        job = await bodies.take(request, ChatRequest, chat_job)
        writer = ChatAnswer(
            name,
            tokenizer,
            logprobs=job.logprobs,
            prompt_logprobs=job.prompt_logprobs,
            usage_in_chunks=job.usage,
            reading=job.reading,
        )
        return await answering.answer(request, writer, job)

    @router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Text that goes on after a prompt, or after each of several."""
        job = await bodies.take(request, CompletionRequest, completion_job)
        writer = CompletionAnswer(
            name,
            tokenizer,
            logprobs=job.params.logprobs if job.logprobs else None,
            prompt_logprobs=job.prompt_logprobs,
            usage_in_chunks=job.usage,
            echo=job.echo,
            n=job.n,
            best=job.best,
        )
        return await answering.answer(request, writer, job)

    return router
