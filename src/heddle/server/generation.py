"""The two endpoints that generate: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server import intake
from heddle.server.keys import salt_of_key
from heddle.server.responses import Answer, ChatAnswer, CompletionAnswer
from heddle.server.schemas import ChatRequest, CompletionRequest, takes
from heddle.server.streaming import EventStream
from heddle.server.whole import WholeAnswers

if TYPE_CHECKING:
    from heddle.server.intake import Job
    from heddle.server.service import Service


def routes(service: Service) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()
    bodies = service.bodies
    whole = WholeAnswers(service.backlog)

    def chat_job(asked: ChatRequest) -> Job:
        return intake.chat_job(asked, service)

    def completion_job(asked: CompletionRequest) -> Job:
        return intake.completion_job(asked, service)

    async def answer(request: Request, kind: type[Answer], job: Job) -> Response:
        """Submit everything at once, so that a refusal comes before the response begins."""
        writer = kind(
            service.engine.model.info.id,
            service.engine.model.tokenizer,
            logprobs=job.params.logprobs is not None,
            usage_in_chunks=job.usage,
        )
        if service.config.prefix_cache_per_key:
            salt = salt_of_key(request.scope, job.params.cache_salt)
            job = replace(job, params=replace(job.params, cache_salt=salt))
        streams = service.engine.astream_many(intake.choices(job), service.backlog)
        if job.stream:
            return EventStream(writer, streams, job.n, usage=job.usage)
        return await whole.response(writer, request.receive, streams, job.n)

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """The next message of a conversation."""
        job = await bodies.take(request, ChatRequest, chat_job)
        return await answer(request, ChatAnswer, job)

    @router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Text that goes on after a prompt, or after each of several."""
        job = await bodies.take(request, CompletionRequest, completion_job)
        return await answer(request, CompletionAnswer, job)

    return router
