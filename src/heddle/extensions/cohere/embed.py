"""Cohere's `/v2/embed`: vectors of texts as numbers of several types."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.errors import InvalidRequestError
from heddle.parameters import Api as Apis
from heddle.server.api.openai.embeddings import base64_of
from heddle.server.generate.api import Api
from heddle.server.generate.dispatch import salted
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.vectors import (
    check_dimensions,
    check_length,
    encoded_vectors,
    shortened,
)
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http import encoding
from heddle.server.http.connection import unless_gone
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Served, Service

MAX_TEXTS = 2048
"""Texts of one request. Cohere takes 96."""

_PROMPTS = {
    "search_query": ("search_query", "query", "s2p_query", "web_search_query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
"""Names that models' files give to the prompts for each `input_type`. The first that is known
counts; without one, a text gets the default prompt."""

_Type = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class TextContent(Schema):
    """A part of an input."""

    type: Literal["text"]
    text: str


class Input(Schema):
    """An input of several texts, which are joined."""

    content: Annotated[list[TextContent], Field(min_length=1, max_length=MAX_TEXTS)]


@decided(Apis.COHERE_EMBED)
class EmbedRequest(Schema):
    """Body of `POST /v2/embed`. A text that is too long is cut at its end if `truncate` is absent.

    A vector with fewer numbers (`output_dimension`) is the first part of the whole one, with
    length 1.
    """

    model: str
    input_type: Literal["search_document", "search_query", "classification", "clustering"]
    texts: Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)] | None = None
    inputs: Annotated[list[Input], Field(min_length=1, max_length=MAX_TEXTS)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    output_dimension: Annotated[int, Field(ge=1)] | None = None
    embedding_types: Annotated[list[_Type], Field(min_length=1, max_length=6)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A translated body."""

    served: Served
    texts: Sequence[str]
    prompts: Sequence[Sequence[int]]
    params: EmbeddingParams
    dimensions: int | None
    types: Sequence[str]


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    router = APIRouter()

    @router.post("/v2/embed", openapi_extra=takes(EmbedRequest))
    async def embed(request: Request) -> Response:
        """Compute a vector of length 1 for each text, in each of the asked types of numbers."""
        prepared = await service.take(request, EmbedRequest, _prepared)
        served = prepared.served
        params = salted(prepared.params, request, service)
        record_of(request.scope).describe(served.name, params)
        encode = partial(_encoded, dimensions=prepared.dimensions, types=prepared.types)
        made = encoded_vectors(prepared.prompts, params, served, request.scope, encode)
        parts = await unless_gone(request.receive, made)
        columns = zip(*(part.split(b"\n") for part in parts), strict=True)
        lists = [
            encoding.encode(kind) + b":" + encoding.array(column)
            for kind, column in zip(prepared.types, columns, strict=True)
        ]
        answer = encoding.joined(_frame(prepared), embeddings=b"{" + b",".join(lists) + b"}")
        return JsonPartsResponse([answer], service.backlog)

    return [router]


def _frame(prepared: _Prepared) -> Mapping[str, object]:
    """The answer without its vectors."""
    tokens = sum(map(len, prepared.prompts))
    return {
        "id": secrets.token_hex(16),
        "response_type": "embeddings_by_type",
        "texts": prepared.texts,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}},
    }


def _prepared(body: EmbedRequest, served: Served) -> _Prepared:
    """Translate a body.

    Raises:
        InvalidRequestError: the texts are missing, one is too long and may not be cut, or the
            dimension is greater than the model's.
    """
    if (body.texts is None) == (body.inputs is None):
        raise InvalidRequestError("send either texts or inputs", param="texts")
    texts = body.texts or [
        "\n".join(part.text for part in one.content) for one in body.inputs or ()
    ]
    model = served.engine.model
    dimensions = check_dimensions(body.output_dimension, model.shape.width, "output_dimension")
    params = EmbeddingParams(priority=body.priority)
    model.check_one_vector(params)  # before texts become tokens, which takes time
    prompt = next((name for name in _PROMPTS[body.input_type] if name in model.prompts), None)
    prompts = [_tokens(body, model.embedding_text(text, prompt), served) for text in texts]
    types = tuple(dict.fromkeys(body.embedding_types or ("float",)))
    return _Prepared(served, texts, prompts, params, dimensions, types)


def _tokens(body: EmbedRequest, text: str, served: Served) -> list[int]:
    engine = served.engine
    tokens = engine.model.tokenizer.encode(text)
    most = min(engine.context, engine.config.max_prompt_tokens or engine.context)
    if body.max_tokens is not None:
        most = min(most, body.max_tokens)
    if body.truncate != "NONE":
        cuts_begin = body.truncate == "START"
        tokens = engine.model.tokenizer.shorten(tokens, most, from_begin=cuts_begin)
    elif body.max_tokens is not None and len(tokens) > most:
        raise InvalidRequestError(
            f"a text has {len(tokens)} tokens, and max_tokens is {body.max_tokens}; set truncate"
            " to START or END, or send a shorter text",
            param="texts",
        )
    check_length(tokens, "texts", served)
    return tokens


def _encoded(
    _index: int, vector: array[float], *, dimensions: int | None, types: Sequence[str]
) -> bytes:
    """The JSON of a vector in each type, on lines of their own."""
    vector = shortened(vector, dimensions)
    return b"\n".join(encoding.encode(_as_type(vector, kind)) for kind in types)


def _as_type(vector: array[float], kind: str) -> object:
    """The vector's numbers in one type.

    int8 are x * 127, rounded, and uint8 the same plus 128. Bits say which numbers are above zero,
    eight in a byte, the first in the highest bit; `binary` is the byte less 128.
    """
    if kind == "base64":
        return base64_of(vector)
    if kind == "float":
        return vector.tolist()
    numbers = np.frombuffer(vector, np.float32)
    if kind in ("int8", "uint8"):
        whole = np.clip(np.rint(numbers * 127), -127, 127).astype(int)
        return (whole + 128 if kind == "uint8" else whole).tolist()
    packed = np.packbits(numbers > 0).astype(int)
    return (packed - 128 if kind == "binary" else packed).tolist()


API = Api(_routes)
