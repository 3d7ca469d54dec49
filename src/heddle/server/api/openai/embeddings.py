"""OpenAI's `/v1/embeddings`: computes a vector for each text of a list."""

from __future__ import annotations

import base64
import sys
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.engine.request import check_tokens
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.server.generate.dispatch import salted
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.request import prompts_of
from heddle.server.generate.vectors import check_length, vectors
from heddle.server.http import encoding
from heddle.server.http.connection import unless_gone
from heddle.server.http.fields import Prompt  # noqa: TC001  pydantic reads it
from heddle.server.http.hints import hint
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from starlette.types import Scope

    from heddle.engine.backlog import Backlog
    from heddle.errors import BacklogError
    from heddle.server.generate.service import Served, Service

MAX_INPUTS = 2048
"""Most texts of one request, as in OpenAI's API."""


class EmbeddingRequest(Schema):
    """Body of `POST /v1/embeddings`. OpenAI's API does not have the last four fields."""

    model: str | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: Annotated[str | None, hint()] = None

    pooling: Literal["mean", "last"] | None = None
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
        served, prepared = await service.take(
            request, EmbeddingRequest, lambda body, served: (served, _prepared(body, served))
        )
        params = salted(prepared.params, request, service)
        record_of(request.scope).describe(prepared.model, params)
        parts = await unless_gone(request.receive, _embed(prepared, params, served, request.scope))
        tokens = sum(map(len, prepared.prompts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        frame = {"object": "list", "model": prepared.model, "usage": usage}
        answer = encoding.joined(frame, data=encoding.array(parts))
        return JsonPartsResponse([answer], service.backlog)

    return router


def _prepared(body: EmbeddingRequest, served: Served) -> PreparedEmbeddings:
    """Translate a body.

    Raises:
        InvalidRequestError: a text is empty or too long, or a value cannot be served.
    """
    texts = prompts_of(body.input)
    if len(texts) > MAX_INPUTS:
        raise InvalidRequestError(
            f"input has {len(texts)} texts; send at most {MAX_INPUTS} at a time", param="input"
        )
    model = served.engine.model
    width = model.shape.width
    if body.dimensions not in (None, width):
        raise UnsupportedParameterError(
            f"dimensions must be {width}, the width of this model, or be left out, got"
            f" {body.dimensions}; shorter vectors need a model that was trained for them",
            param="dimensions",
        )
    prompts = [_tokens(text, body.prompt_name, served) for text in texts]
    params = EmbeddingParams(
        body.pooling,  # type: ignore[arg-type]  # a name
        body.cache_salt,
        priority=body.priority,
    )
    return PreparedEmbeddings(served.name, prompts, params, body.encoding_format == "base64")


def _tokens(text: str | list[int], prompt_name: str | None, served: Served) -> list[int]:
    model = served.engine.model
    if not text:
        raise InvalidRequestError(f"input must not be empty, got {text!r}", param="input")
    if isinstance(text, str):
        tokens = model.tokenizer.encode(model.embedding_text(text, prompt_name))
    else:
        tokens = check_tokens(model, text, "input")
        if prompt_name is not None:
            raise InvalidRequestError(
                f"prompt_name {prompt_name!r} goes with texts, not with token ids; leave it out, or"
                " send texts",
                param="prompt_name",
            )
    check_length(tokens, "input", served)
    return tokens


async def _embed(
    prepared: PreparedEmbeddings,
    params: EmbeddingParams,
    served: Served,
    scope: Scope,
) -> list[bytes]:
    """Compute the vectors and return the JSON of each, in order.

    Raises:
        HeddleError: the engine refuses a text or fails on it. All texts are cancelled.
    """
    gathering = Gathering(served.backlog)
    async with aclosing(vectors(prepared.prompts, params, served, scope)) as ready:
        async for index, vector in ready:
            gathering.add(index, _entry(index, vector, in_base64=prepared.in_base64))
    return gathering.take()


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
