"""The routes `/api/embed` and `/api/embeddings`: vectors of texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import Field, Tag
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.errors import InvalidRequestError
from heddle.extensions.ollama.fields import KeepAlive, ModelName  # noqa: TC001  for pydantic
from heddle.extensions.ollama.writer import Clock
from heddle.parameters import Api
from heddle.server.generate.dispatch import salted
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.vectors import check_length, encoded_vectors, shortened
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http import encoding
from heddle.server.http.connection import unless_gone
from heddle.server.http.fields import Strings, shaped
from heddle.server.http.record import record_of
from heddle.server.http.schema import MAX_ITEMS, Schema, takes

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from heddle.extensions.ollama.residence import Residence
    from heddle.server.generate.service import Served, Service

Texts = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[Strings, Field(max_length=MAX_ITEMS), Tag("<list of str>")]
    | Annotated[Strings, Tag("<list>")],
    shaped("a string or a list of strings"),
]


@decided(Api.OLLAMA_EMBED)
class EmbedRequest(Schema):
    """Body of `POST /api/embed`. A text that is too long is cut, unless `truncate` is false.

    A cut text keeps the tokens that the model needs at its end.

    A vector with fewer `dimensions` is the first part of the whole vector, with length 1. Options
    have no effect on a vector.
    """

    model: ModelName
    input: Texts | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=0)] | None = None
    keep_alive: KeepAlive | None = None


@decided(Api.OLLAMA_EMBEDDINGS)
class EmbeddingRequest(Schema):
    """Body of `POST /api/embeddings`, the older route."""

    model: ModelName
    prompt: str | None = None
    keep_alive: KeepAlive | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A translated body: the model, and the token ids of each text."""

    served: Served
    prompts: Sequence[Sequence[int]]
    dimensions: int


def routes(service: Service, residence: Residence) -> APIRouter:
    """The routes of one application."""
    router = APIRouter()

    async def answered(request: Request, prepared: _Prepared) -> list[bytes]:
        """The JSON of each vector."""
        params = salted(EmbeddingParams(), request, service)
        record_of(request.scope).describe(prepared.served.name, params)
        encode = partial(_encoded, dimensions=prepared.dimensions)
        work = encoded_vectors(prepared.prompts, params, prepared.served, request.scope, encode)
        return await unless_gone(request.receive, work)

    @router.post("/api/embed", openapi_extra=takes(EmbedRequest))
    async def embed(request: Request) -> Response:
        """Compute a vector of length 1 for each text, in the shape of Ollama's API."""

        def translated(body: EmbedRequest, served: Served) -> tuple[_Prepared, Clock]:
            residence.keep(request, body.model, body.keep_alive)
            return _prepared(body, served), Clock.of(request.scope)

        prepared, clock = await service.take(request, EmbedRequest, translated)
        vectors = await answered(request, prepared)
        count = sum(map(len, prepared.prompts))
        frame = {"model": prepared.served.name, **clock.durations(), "prompt_eval_count": count}
        answer = encoding.joined(frame, embeddings=encoding.array(vectors))
        return JsonPartsResponse([answer], service.backlog)

    @router.post("/api/embeddings", openapi_extra=takes(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        """Compute the vector of one text. `/api/embed` is the newer route."""

        def translated(body: EmbeddingRequest, served: Served) -> _Prepared:
            residence.keep(request, body.model, body.keep_alive)
            texts = [_tokens(body.prompt, "prompt", served, cuts=True)] if body.prompt else []
            return _Prepared(served, texts, 0)

        prepared = await service.take(request, EmbeddingRequest, translated)
        vectors = await answered(request, prepared)
        answer = b'{"embedding":' + (vectors[0] if vectors else b"[]") + b"}"
        return JsonPartsResponse([answer], service.backlog)

    return router


def _prepared(body: EmbedRequest, served: Served) -> _Prepared:
    """Translate a body. An empty text or list asks for no vector, only for the model.

    Raises:
        InvalidRequestError: a text of the list is empty; or a text is too long and may not be cut.
    """
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    if body.input == "":
        texts = []
    cuts = body.truncate is not False
    prompts = [_tokens(text, f"input[{i}]", served, cuts=cuts) for i, text in enumerate(texts)]
    return _Prepared(served, prompts, body.dimensions or 0)


def _tokens(text: str, param: str, served: Served, *, cuts: bool) -> list[int]:
    model, config = served.engine.model, served.engine.config
    if not text:
        raise InvalidRequestError(f"{param} must not be empty, got {text!r}", param=param)
    tokens = model.tokenizer.encode(model.embedding_text(text, None))
    if cuts:
        limit = min(served.engine.context, config.max_prompt_tokens or len(tokens))
        tokens = model.tokenizer.shorten(tokens, limit)
    check_length(tokens, param, served)
    return tokens


def _encoded(_index: int, vector: array[float], *, dimensions: int) -> bytes:
    """The JSON of a vector; of its first `dimensions`, with length 1, if these are fewer."""
    return encoding.encode(shortened(vector, dimensions or None).tolist())
