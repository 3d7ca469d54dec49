"""OpenAI's `/v1/embeddings`: computes a vector for each text of a list."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.errors import InvalidRequestError
from heddle.parameters import Api
from heddle.server.generate.dispatch import salted
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.mixed_prompts import Prompts, prompts_in, tokens_of
from heddle.server.generate.vectors import (
    check_dimensions,
    check_length,
    encoded_vectors,
    entry_of_tokens,
    shortened,
)
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http import encoding
from heddle.server.http.connection import unless_gone
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from heddle.server.generate.mixed_prompts import OnePrompt
    from heddle.server.generate.service import Served, Service

MAX_INPUTS = 2048
"""Most texts of one request, as in OpenAI's API."""


@decided(Api.EMBEDDINGS)
class EmbeddingRequest(Schema):
    """Body of `POST /v1/embeddings`. OpenAI's API does not have the last four fields."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    pooling: Literal["mean", "cls", "last"] | None = None
    cache_salt: str | None = None
    prompt_name: str | None = None
    priority: int = 0


class Entry(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int = Field(description="Index of the text in `input`.")
    embedding: list[float] | str = Field(
        description="Vector of length 1, as numbers or as base64 of little-endian float32."
    )


class TokenCounts(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Answer of `POST /v1/embeddings`."""

    object: Literal["list"]
    model: str
    usage: TokenCounts
    data: list[Entry]


@dataclass(frozen=True, slots=True)
class PreparedEmbeddings:
    """A request for embeddings, translated from its body.

    Attributes:
        model: name of the model in the answer.
        prompts: token ids of each text.
        params: parameters of all texts.
        in_base64: whether to encode vectors as base64 of little-endian float32; else as numbers.
        dimensions: how many numbers of each vector; None: all.
    """

    model: str
    prompts: Sequence[Sequence[int]]
    params: EmbeddingParams
    in_base64: bool
    dimensions: int | None


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/embeddings", response_model=Embeddings, openapi_extra=takes(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        """Compute a vector of length 1 for each text.

        If the setting `pooling` is none, `/embeddings` without `/v1` computes a vector for each
        token and answers as llama.cpp.
        """
        served, prepared = await service.take(
            request, EmbeddingRequest, lambda body, served: (served, _prepared(body, served))
        )
        params = salted(prepared.params, request, service)
        record_of(request.scope).describe(prepared.model, params)
        model, path = served.engine.model, request.scope.get("raw_path")
        each_token = path == b"/embeddings" and model.embeds_tokens(params)
        entry = partial(_entry, in_base64=prepared.in_base64, dimensions=prepared.dimensions)
        if each_token:
            entry = partial(entry_of_tokens, width=model.shape.width)
        made = encoded_vectors(
            prepared.prompts, params, served, request.scope, entry, each_token=each_token
        )
        parts = await unless_gone(request.receive, made)
        if each_token:
            return JsonPartsResponse([encoding.array(parts)], service.backlog)
        tokens = sum(map(len, prepared.prompts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        frame = {"object": "list", "model": prepared.model, "usage": usage}
        answer = encoding.joined(frame, data=encoding.array(parts))
        return JsonPartsResponse([answer], service.backlog)

    return router


def _prepared(body: EmbeddingRequest, served: Served) -> PreparedEmbeddings:
    """Translate a body.

    Raises:
        InvalidRequestError: a text has no tokens or is too long, or a value cannot be served.
    """
    texts = prompts_in(body.input)
    if len(texts) > MAX_INPUTS:
        raise InvalidRequestError(
            f"input has {len(texts)} texts; send at most {MAX_INPUTS} at a time", param="input"
        )
    model = served.engine.model
    dimensions = check_dimensions(body.dimensions, model.shape.width, "dimensions")
    prompts = [_tokens(text, body.prompt_name, served) for text in texts]
    params = EmbeddingParams(
        body.pooling,  # type: ignore[arg-type]  # a name
        body.cache_salt,
        priority=body.priority,
    )
    in_base64 = body.encoding_format == "base64"
    return PreparedEmbeddings(served.name, prompts, params, in_base64, dimensions)


def _tokens(text: OnePrompt, prompt_name: str | None, served: Served) -> list[int]:
    model = served.engine.model
    if isinstance(text, str):
        tokens = model.tokenizer.encode(model.embedding_text(text, prompt_name))
    else:
        tokens = tokens_of(text, model, "input")
        if prompt_name is not None:
            raise InvalidRequestError(
                f"prompt_name {prompt_name!r} goes with texts, not with token ids; leave it out, or"
                " send texts",
                param="prompt_name",
            )
    check_length(tokens, "input", served)
    return tokens


def _entry(index: int, vector: array[float], *, in_base64: bool, dimensions: int | None) -> bytes:
    """The JSON of an element of `data`."""
    vector = shortened(vector, dimensions)
    embedding = base64_of(vector) if in_base64 else vector.tolist()
    return encoding.encode({"object": "embedding", "index": index, "embedding": embedding})


def base64_of(vector: array[float]) -> str:
    """Base64 of the numbers as little-endian float32, which the `openai` client expects."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()
