"""Vertex AI's `/predict`: several bodies of `/v1/chat/completions` in one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.server.api.openai.requests import from_chat
from heddle.server.api.openai.schemas import ChatRequest
from heddle.server.generate.api import Api
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.vectors import Gathering
from heddle.server.http.encoding import array
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from heddle.engine import Engine
    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.request import GenerationRequest
    from heddle.server.generate.service import Served, Service
    from heddle.server.generate.writer import AnswerWriter

    Prepared: TypeAlias = tuple[Engine, GenerationRequest, AnswerWriter]


class Instance(ChatRequest):
    """A body of `/v1/chat/completions` without a stream."""

    request_format: Literal["chatCompletions"] = Field(alias="@requestFormat")
    stream: Literal[False] | None = None


class PredictRequest(Schema):
    """Body of `POST /predict`."""

    instances: Annotated[list[Instance], Field(min_length=1, max_length=256)]


def _routes(service: Service, dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()

    @router.post("/predict", openapi_extra=takes(PredictRequest))
    async def predict(request: Request) -> Response:
        """Answer each instance as `/v1/chat/completions` does."""
        gathering = Gathering(service.backlog)

        def translated(instance: Instance) -> Prepared:
            served = service.served(instance.model)
            return (served.engine, *from_chat(instance, served, request.scope))

        async def answer(
            index: int, engine: Engine, asked: GenerationRequest, writer: AnswerWriter
        ) -> None:
            response = await dispatcher.generate(request, engine, asked, writer)
            assert isinstance(response, JsonPartsResponse), "it is no stream"
            gathering.add(index, response.take())

        def all_translated(body: PredictRequest, served: Served) -> list[Prepared]:
            served.check_choices(len(body.instances), 1)
            return [*map(translated, body.instances)]

        every = await service.take(request, PredictRequest, all_translated)
        try:
            async with asyncio.TaskGroup() as group:
                for index, prepared in enumerate(every):
                    group.create_task(answer(index, *prepared))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return JsonPartsResponse(
            [b'{"predictions":' + array(gathering.take()) + b"}"], service.backlog
        )

    return [router]


API = Api(_routes)
