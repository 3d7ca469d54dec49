"""The two endpoints that generate: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError
from heddle.server import body, intake
from heddle.server.connection import unless_gone
from heddle.server.encoding import json_response
from heddle.server.keys import salt_of_key
from heddle.server.responses import Answer, ChatAnswer, CompletionAnswer, total_usage
from heddle.server.schemas import ChatRequest, CompletionRequest, GenerationRequest, takes
from heddle.server.streaming import EventStream
from heddle.types import Output, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive

    from heddle.engine.streams import AsyncStream
    from heddle.server.service import Service


def routes(service: Service) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()
    model = service.engine.model

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """The next message of a conversation."""
        asked = await body.read(request, ChatRequest, service.config)
        service.check_model(asked.model)
        params = intake.chat_params(asked)
        prompt = await intake.chat_prompt(asked.messages, model)
        return await _answer(service, request, asked, ChatAnswer, [prompt], params)

    @router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Text that goes on after a prompt, or after each of several."""
        asked = await body.read(request, CompletionRequest, service.config)
        service.check_model(asked.model)
        params = intake.completion_params(asked)
        texts = intake.prompts_of(asked)
        service.check_choices(len(texts), asked.n or 1)
        prompts = await intake.tokenized(texts, model.tokenizer)
        return await _answer(service, request, asked, CompletionAnswer, prompts, params)

    return router


async def _answer(
    service: Service,
    request: Request,
    asked: GenerationRequest,
    kind: type[Answer],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> Response:
    """Submit everything at once, so that a refusal comes before the response begins."""
    if asked.stream_options is not None and not asked.stream:
        raise InvalidRequestError(
            f"stream_options needs stream to be true, got {asked.stream!r}", param="stream_options"
        )
    wants_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
    answer = kind(
        service.engine.model.info.id,
        service.engine.model.tokenizer,
        logprobs=params.logprobs is not None,
        usage_in_chunks=wants_usage,
    )
    n = asked.n or 1
    if service.config.prefix_cache_per_key:
        params = replace(params, cache_salt=salt_of_key(request.scope, params.cache_salt))
    streams = service.engine.astream_many(intake.choices(prompts, params, n))
    if asked.stream:
        return EventStream(answer, streams, n, usage=wants_usage)
    outputs = await collect(request.receive, streams)
    usage = total_usage([output.usage for output in outputs], n)
    answer.log_end(usage)
    return json_response(answer.whole(outputs, usage))


async def collect(receive: Receive, streams: Sequence[AsyncStream]) -> list[Output]:
    """All outputs, in order; deltas of later ones wait where they are.

    Raises:
        HeddleError: what one of the requests ended with; the others are cancelled.
        ClientGoneError: the client went away; all are cancelled.
    """

    async def outputs() -> list[Output]:
        return [await _whole(stream) for stream in streams]

    try:
        return await unless_gone(receive, outputs())
    finally:
        for stream in streams:
            stream.close()


async def _whole(stream: AsyncStream) -> Output:
    deltas = [delta async for delta in stream]
    last = deltas[-1]
    assert last.finish is not None and last.usage is not None
    text = "".join(delta.text for delta in deltas)
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    return Output(text, tokens, last.finish, last.usage)
