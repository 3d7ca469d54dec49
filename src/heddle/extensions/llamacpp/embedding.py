"""llama.cpp's `/embedding`: computes a vector for each text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.errors import InvalidRequestError
from heddle.parameters import Api
from heddle.server.generate.dispatch import salted
from heddle.server.generate.json_answer import JsonPartsResponse
from heddle.server.generate.mixed_prompts import Prompts, prompts_in, tokens_of
from heddle.server.generate.vectors import check_length, encoded_vectors, entry_of_tokens
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.connection import unless_gone
from heddle.server.http.encoding import array
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from heddle.server.generate.service import Served, Service


@decided(Api.EMBEDDING)
class NativeEmbeddingRequest(Schema):
    """Body of `POST /embedding`, with the texts in one of `content` and `input`."""

    model: str | None = None
    content: Prompts | None = None
    input: Prompts | None = None
    encoding_format: Literal["float"] | None = None
    embd_normalize: Literal[-1, 2] | None = None


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/embedding", openapi_extra=takes(NativeEmbeddingRequest))
    async def embedding(request: Request) -> Response:
        """Compute a vector for each text, of length 1 unless `embd_normalize` is -1.

        With the setting `pooling` none, compute a vector for each token, of any length.
        """
        served, prompts, params = await service.take(
            request, NativeEmbeddingRequest, lambda body, served: (served, *_read(body, served))
        )
        params = salted(params, request, service)
        record_of(request.scope).describe(served.name, params)
        entry = partial(entry_of_tokens, width=served.engine.model.shape.width)
        made = encoded_vectors(prompts, params, served, request.scope, entry, each_token=True)
        parts = await unless_gone(request.receive, made)
        return JsonPartsResponse([array(parts)], service.backlog)

    return router


def _read(body: NativeEmbeddingRequest, served: Served) -> tuple[list[list[int]], EmbeddingParams]:
    """The token ids of each text, and the parameters of all.

    Raises:
        InvalidRequestError: the body has no texts or two fields of texts, or a text has no tokens
            or is too long.
    """
    given = [name for name in ("content", "input") if getattr(body, name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidRequestError(f"send one of content and input; got {got}", param="content")
    [name] = given
    prompts = prompts_in(getattr(body, name))
    tokens = [tokens_of(prompt, served.engine.model, name) for prompt in prompts]
    for ids in tokens:
        check_length(ids, name, served)
    return tokens, EmbeddingParams(unit_length=body.embd_normalize != -1)
