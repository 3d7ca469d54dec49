"""`/pooling`: what a model makes of whole texts: a vector, one for each token, or probabilities."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.extensions.vllm.classify import probabilities
from heddle.extensions.vllm.lists import framed, tokens_of_inputs
from heddle.extensions.vllm.truncation import TruncatePromptTokens  # noqa: TC001  for pydantic
from heddle.parameters import Api
from heddle.server.api.openai.embeddings import base64_of
from heddle.server.generate.dispatch import salted
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.mixed_prompts import Prompts  # noqa: TC001  for pydantic
from heddle.server.generate.vectors import encoded_vectors
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http import encoding
from heddle.server.http.connection import unless_gone
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from array import array

    from heddle.loading.loaded_model import LoadedModel
    from heddle.server.generate.service import Served, Service


@decided(Api.POOLING)
class PoolingRequest(Schema):
    """Body of `POST /pooling`. `pooling` is not of vLLM: none gives a vector for each token."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    pooling: Literal["mean", "cls", "last", "none"] | None = None
    truncate_prompt_tokens: TruncatePromptTokens = None
    cache_salt: str | None = None
    priority: int = 0


class Pooled(BaseModel):
    """The result of one text."""

    index: int
    object: Literal["pooling"]
    data: list[Any] | str


class PooledTexts(BaseModel):
    """Answer of `POST /pooling`."""

    id: str
    object: str
    created: int
    model: str
    data: list[Pooled]


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/pooling", response_model=PooledTexts, openapi_extra=takes(PoolingRequest))
    async def pooling(request: Request) -> Response:
        """A vector of each text, or one of each token; of a classifier, probabilities."""
        body, served, prompts = await service.take(
            request,
            PoolingRequest,
            lambda body, served: (body, served, _prompts(body, served)),
        )
        params = salted(_params(body, served), request, service)
        record_of(request.scope).describe(served.name, params)
        model = served.engine.model
        each_token = model.embeds_tokens(params)
        encode = partial(_entry, body=body, model=model, each_token=each_token)
        made = encoded_vectors(
            prompts, params, served, request.scope, encode, each_token=each_token
        )
        parts = await unless_gone(request.receive, made)
        frame = framed("pool", served.name, prompts, None)
        del frame["data"]
        answer = encoding.joined(frame, data=encoding.array(parts))
        return JsonPartsResponse([answer], service.backlog)

    return router


def _prompts(body: PoolingRequest, served: Served) -> list[list[int]]:
    return tokens_of_inputs(body.input, served, body.truncate_prompt_tokens)


def _params(body: PoolingRequest, served: Served) -> EmbeddingParams:
    asked = body.use_activation if body.normalize is None else body.normalize
    return EmbeddingParams(
        body.pooling,  # type: ignore[arg-type]  # a name
        body.cache_salt,
        unit_length=not served.engine.model.labels and asked is not False,
        priority=body.priority,
    )


def _entry(
    index: int, vector: array[float], *, body: PoolingRequest, model: LoadedModel, each_token: bool
) -> bytes:
    """The JSON of an element of `data`."""
    data: object
    if model.labels and body.use_activation is not False:
        vector = type(vector)("f", probabilities(vector.tolist(), model))
    if body.encoding_format == "base64":
        data = base64_of(vector)
    elif each_token:
        width = model.shape.width
        starts = range(0, len(vector), width)
        data = [vector[start : start + width].tolist() for start in starts]
    else:
        data = vector.tolist()
    return encoding.encode({"index": index, "object": "pooling", "data": data})
