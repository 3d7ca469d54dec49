"""OpenAI's `/v1/embeddings`: computes a vector for each text of a list."""

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
"""Most texts of one request, as in OpenAI's API."""
_AHEAD = 4
"""Texts of one body that are in the engine at once, for each slot. The other texts follow later. So
the queue keeps places for other clients, and a body may have more texts than the queue has places.
"""
_NEXT_TRY = 0.05
"""Seconds before texts are submitted again after the queue was full."""


class EmbeddingRequest(Schema):
    """Body of `POST /v1/embeddings`. OpenAI's API does not have the last two fields."""

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
    """

    model: str
    prompts: Sequence[Sequence[int]]
    params: EmbeddingParams
    in_base64: bool


class Gathering:
    """Collects the encoded vectors of an answer. The backlog counts them.

    Attributes:
        held: bytes of the collected vectors.
    """

    def __init__(self, backlog: Backlog) -> None:
        self.held = 0
        self._backlog = backlog
        self._parts: dict[int, bytes] = {}
        self._failure: BacklogError | None = None
        backlog.watch(self)

    def add(self, index: int, part: bytes) -> None:
        """Add the JSON of one vector.

        Raises:
            BacklogError: unread answers take too much memory, and this answer is the largest.
        """
        self._parts[index] = part
        self.held += len(part)
        self._backlog.check()
        if self._failure is not None:
            raise self._failure

    def take(self) -> list[bytes]:
        """Return all vectors in order. The backlog no longer counts them.

        Raises:
            BacklogError: see :meth:`add`.
        """
        if self._failure is not None:
            raise self._failure
        self.held = 0
        return [part for _, part in sorted(self._parts.items())]

    def cut(self, error: BacklogError) -> None:
        """Discard all vectors. Later calls raise `error`."""
        self._failure = error
        self._parts.clear()
        self.held = 0


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/embeddings", response_model=Embeddings, openapi_extra=takes(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        """Compute a vector of length 1 for each text."""
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
    """Translate a body.

    Raises:
        InvalidRequestError: a text is empty or too long, or a value cannot be served.
    """
    name = service.model_name(body.model)
    texts = prompts_of(body.input)
    if len(texts) > MAX_INPUTS:
        raise InvalidRequestError(
            f"input has {len(texts)} texts; send at most {MAX_INPUTS} at a time", param="input"
        )
    model = service.engine.model
    width = model.shape.width
    if body.dimensions not in (None, width):
        raise UnsupportedParameterError(
            f"dimensions must be {width}, the width of this model, or be left out, got"
            f" {body.dimensions}; shorter vectors need a model that was trained for them",
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
    """Compute the vectors and return the JSON of each, in order.

    Raises:
        HeddleError: the engine refuses a text or fails on it. All texts are cancelled.
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
    """Submit requests and return their streams.

    If the queue is full, a `patient` caller waits, because it already has vectors of the answer.

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
    """The JSON of an element of `data`."""
    embedding = _base64(vector) if in_base64 else vector.tolist()
    return encoding.encode({"object": "embedding", "index": index, "embedding": embedding})


def _base64(vector: array[float]) -> str:
    """Base64 of the numbers as little-endian float32, which the `openai` client expects."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()
