"""OpenAI's `/v1/embeddings`: a vector for each of several texts."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.engine.request import check_tokens
from heddle.errors import (
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
    UnsupportedParameterError,
)
from heddle.server.generate.dispatch import salted
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.request import prompts_of
from heddle.server.http import encoding
from heddle.server.http.connection import unless_gone
from heddle.server.http.fields import Prompt  # noqa: TC001  pydantic reads it
from heddle.server.http.hints import hint
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from heddle.engine.backlog import Backlog
    from heddle.engine.streams import AsyncStreams
    from heddle.errors import BacklogError
    from heddle.server.generate.service import Service

log = logging.getLogger(__name__)

MAX_INPUTS = 2048
"""Texts of one request, as in OpenAI's API."""
_AHEAD = 4
"""Texts of one body in the engine at once, for each slot. The others follow later, so that other
clients find places in the queue, and a body may hold more texts than the queue has places."""
_NEXT_TRY = 0.05
"""Seconds until the next try to submit texts after the queue was full."""


class EmbeddingRequest(Schema):
    """Body of `POST /v1/embeddings`. The last two fields are not OpenAI's."""

    model: str | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: Annotated[str | None, hint()] = None

    pooling: Literal["mean", "last"] | None = None
    cache_salt: str | None = None


class Entry(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int = Field(description="of the text in `input`")
    embedding: list[float] | str = Field(
        description="numbers, or little-endian float32 in base64; of length 1"
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
    """What a body asks of the engine.

    Attributes:
        model: the name that the answer gives the model.
        prompts: token ids of each text.
        params: for all texts.
        in_base64: whether to encode vectors as base64 of little-endian float32; else as numbers.
    """

    model: str
    prompts: Sequence[Sequence[int]]
    params: EmbeddingParams
    in_base64: bool


class Gathering:
    """Encoded vectors that wait for the other vectors of the answer. The backlog counts them.

    Attributes:
        held: bytes of the vectors that wait.
    """

    def __init__(self, backlog: Backlog) -> None:
        self.held = 0
        self._backlog = backlog
        self._parts: dict[int, bytes] = {}
        self._failure: BacklogError | None = None
        backlog.watch(self)

    def add(self, index: int, part: bytes) -> None:
        """Keep the JSON of one vector.

        Raises:
            BacklogError: too much waits in all answers, and this answer was the largest.
        """
        self._parts[index] = part
        self.held += len(part)
        self._backlog.check()
        if self._failure is not None:
            raise self._failure

    def take(self) -> list[bytes]:
        """All vectors in order. Nothing waits here afterwards.

        Raises:
            BacklogError: as :meth:`add`.
        """
        if self._failure is not None:
            raise self._failure
        self.held = 0
        return [part for _, part in sorted(self._parts.items())]

    def cut(self, error: BacklogError) -> None:
        """Drop all vectors."""
        self._failure = error
        self._parts.clear()
        self.held = 0


def routes(service: Service) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()

    @router.post("/v1/embeddings", response_model=Embeddings, openapi_extra=takes(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        """A vector of length 1 for each text."""
        started = time.perf_counter()
        prepared = await service.bodies.take(
            request, EmbeddingRequest, lambda body: _prepared(body, service)
        )
        params = salted(prepared.params, request, service)
        parts = await unless_gone(request.receive, _embed(prepared, params, service))
        tokens = sum(map(len, prepared.prompts))
        log.info(
            "embeddings: %d texts, %d tokens, %.2f s",
            len(prepared.prompts),
            tokens,
            time.perf_counter() - started,
        )
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        frame = {"object": "list", "model": prepared.model, "usage": usage}
        answer = encoding.joined(frame, data=encoding.array(parts))
        return JsonPartsResponse("embeddings", [answer], service.backlog)

    return router


def _prepared(body: EmbeddingRequest, service: Service) -> PreparedEmbeddings:
    """What a body asks for.

    Raises:
        InvalidRequestError: a text is empty or too long, or a value cannot be served.
    """
    name = service.model_name(body.model)
    texts = prompts_of(body.input)
    if len(texts) > MAX_INPUTS:
        raise InvalidRequestError(
            f"input holds {len(texts)} texts; send at most {MAX_INPUTS} at a time", param="input"
        )
    model = service.engine.model
    width = model.shape.width
    if body.dimensions not in (None, width):
        raise UnsupportedParameterError(
            f"dimensions must be {width}, the width of this model, or be left out, got"
            f" {body.dimensions}: cut vectors are of use only where a model was trained for it",
            param="dimensions",
        )
    prompts = [_tokens(text, service) for text in texts]
    params = EmbeddingParams(body.pooling, body.cache_salt)  # type: ignore[arg-type]  # a name
    return PreparedEmbeddings(name, prompts, params, body.encoding_format == "base64")


def _tokens(text: str | list[int], service: Service) -> list[int]:
    if not text:
        raise InvalidRequestError(f"input must not be empty, got {text!r}", param="input")
    if isinstance(text, str):
        tokens = service.engine.model.tokenizer.encode(text)
    else:
        tokens = check_tokens(service.engine.model, text, "input")
    try:
        service.engine.check_length(len(tokens), output=False)
    except ContextLengthError as error:
        error.param = "input"
        raise
    return tokens


async def _embed(
    prepared: PreparedEmbeddings, params: EmbeddingParams, service: Service
) -> list[bytes]:
    """JSON of each vector, in order.

    Raises:
        HeddleError: the engine refuses a text or fails on it; all texts are cancelled.
    """
    gathering, config = Gathering(service.backlog), service.engine.config
    together = min(_AHEAD * config.slots, config.slots + config.queue)
    for first in range(0, len(prepared.prompts), together):
        requests = [(prompt, params) for prompt in prepared.prompts[first : first + together]]
        streams = await _submitted(requests, service, patient=first > 0)
        try:
            async for index, delta in streams:
                if delta.embedding is not None:
                    entry = _entry(first + index, delta.embedding, in_base64=prepared.in_base64)
                    gathering.add(first + index, entry)
                    await asyncio.sleep(0)  # let other tasks run: many vectors may arrive at once
        finally:
            streams.close()
    return gathering.take()


async def _submitted(
    requests: Sequence[tuple[Sequence[int], EmbeddingParams]], service: Service, *, patient: bool
) -> AsyncStreams:
    """The requests' streams. A `patient` caller waits for the queue instead of losing its vectors.

    Raises:
        HeddleError: the engine refuses a request.
    """
    while True:
        try:
            return service.engine.generate_many(requests, service.backlog)
        except OverloadedError:
            if not patient:
                raise
            await asyncio.sleep(_NEXT_TRY)


def _entry(index: int, vector: array[float], *, in_base64: bool) -> bytes:
    """An element of `data`."""
    embedding = _base64(vector) if in_base64 else vector.tolist()
    return encoding.encode({"object": "embedding", "index": index, "embedding": embedding})


def _base64(vector: array[float]) -> str:
    """The numbers as little-endian float32, as the `openai` client reads them."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()
