"""Documents in the order of how well they answer a query: `/v1/rerank`, `/v2/rerank`, and
llama.cpp's `/reranking`.

The shapes are those that the clients of Jina, Cohere and vLLM share. A body with `texts` instead of
`documents` is one of Hugging Face's Text Embeddings Inference (TEI); its answer is a plain list.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, Tag
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.errors import InvalidRequestError
from heddle.extensions.vllm.lists import all_vectors
from heddle.extensions.vllm.truncation import (
    MaxTokensPerDoc,
    Room,
    TruncatePromptTokens,
    prompt_limit,
    prompts_of_pairs,
)
from heddle.loading.judge import probability
from heddle.parameters import Api
from heddle.server.generate.dispatch import salted
from heddle.server.generate.parameters import agreed
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.connection import unless_gone
from heddle.server.http.encoding import json_response
from heddle.server.http.fields import FIRST_FAULT, shaped
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.server.generate.service import Served, Service

MAX_DOCUMENTS = 2048
"""Documents of one request."""
_MOST_OF_A_DOCUMENT = 4096
"""Cohere's default of `max_tokens_per_doc`."""
_SEVERAL = Field(min_length=1, max_length=MAX_DOCUMENTS)
_PATHS = ("/v1/rerank", "/v1/reranking", "/v2/rerank")


class TextDocument(Schema):
    """A document as an object."""

    text: str


_Document = Annotated[
    Annotated[str, Tag("<str>")] | Annotated[TextDocument, Tag("<dict>")],
    shaped("a text or an object with text"),
]


@decided(Api.RERANK)
class RerankRequest(Schema):
    """Body of `POST /v1/rerank`, with `documents` or with TEI's `texts`.

    `instruction` and `cache_salt` are not of these APIs. `priority` is vLLM's.
    """

    model: str | None = None
    query: str = Field(min_length=1)
    documents: Annotated[list[_Document], _SEVERAL, FIRST_FAULT] | None = None
    texts: Annotated[list[str], _SEVERAL] | None = Field(None, description="`documents` in TEI")
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="how many results to return, the best; null: all"
    )
    return_documents: bool | None = Field(
        None, description="whether results hold the text of their document"
    )
    raw_scores: bool = Field(False, description="whether scores are logits, with `texts`")
    return_text: bool | None = Field(
        None, description="`return_documents` in TEI; null: true, or false with `texts`"
    )

    max_tokens_per_doc: MaxTokensPerDoc = None
    truncate_prompt_tokens: TruncatePromptTokens = None
    truncate: bool = Field(False, description="whether too long `texts` lose their end")
    instruction: str | None = Field(None, description="what the documents are judged by")
    cache_salt: str | None = None
    priority: int = 0


class Result(BaseModel):
    """One document's score."""

    index: int = Field(description="index in `documents`")
    relevance_score: float = Field(description="probability that it answers the query")
    document: TextDocument | None = None


class TextResult(BaseModel):
    """The score of one of `texts`."""

    index: int = Field(description="index in `texts`")
    score: float = Field(description="probability that it answers the query")
    text: str | None = None


class RerankUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Reranking(BaseModel):
    """Answer of `POST /v1/rerank`."""

    id: str
    model: str
    usage: RerankUsage
    results: list[Result] = Field(description="the best first; equal scores in the given order")


def routes(service: Service) -> APIRouter:
    """Routes of one service."""
    router = APIRouter()

    async def rerank(request: Request) -> Response:
        """Scores of documents for a query, the best first."""
        body, served, prompts = await service.take(
            request, RerankRequest, lambda body, served: (body, served, _prompts(body, served))
        )
        judge = served.engine.model.judge()
        params = replace(judge.params, cache_salt=body.cache_salt, priority=body.priority)
        params = salted(params, request, service)
        record_of(request.scope).describe(served.name, params)
        found = await unless_gone(
            request.receive, all_vectors(prompts, params, served, request.scope)
        )
        logits = list(map(judge.logit, found))
        results = _results(body, logits if body.raw_scores else list(map(probability, logits)))
        if body.texts is not None:
            return json_response(results)
        tokens = sum(map(len, prompts))
        return json_response(
            {
                "id": f"rerank-{secrets.token_hex(12)}",
                "model": served.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": results,
            }
        )

    for path in _PATHS:
        router.post(
            path,
            response_model=Reranking | list[TextResult],
            openapi_extra=takes(RerankRequest),
        )(rerank)
    return router


def _text(document: str | TextDocument) -> str:
    return document if isinstance(document, str) else document.text


def _documents(body: RerankRequest) -> tuple[str, Sequence[str]]:
    """The field that has the documents, and their texts.

    Raises:
        InvalidRequestError: the body has both fields, or neither.
    """
    if (body.documents is None) == (body.texts is None):
        raise InvalidRequestError(
            "send either documents or texts, the list of texts to rank", param="documents"
        )
    if body.texts is not None:
        return "texts", body.texts
    return "documents", [_text(document) for document in body.documents or ()]


def _prompts(body: RerankRequest, served: Served) -> list[list[int]]:
    """The question about each document, in token ids. Raises as `prompts_of_pairs`."""
    field, texts = _documents(body)
    pairs = [(body.query, text) for text in texts]
    return prompts_of_pairs(pairs, served, _room(body, served), field, body.instruction)


def _room(body: RerankRequest, served: Served) -> Room:
    """The room of documents: as much as fits, or of `texts` all unless `truncate` is set."""
    asked = body.truncate_prompt_tokens
    cuts = body.texts is None or body.truncate
    limit = prompt_limit(-1 if asked is None and cuts else asked, served)
    most = _MOST_OF_A_DOCUMENT if body.texts is None else None
    return Room(limit, most if body.max_tokens_per_doc is None else body.max_tokens_per_doc)


def _results(body: RerankRequest, scores: Sequence[float]) -> list[dict[str, object]]:
    """The best documents, as JSON."""
    field, texts = _documents(body)
    asked = agreed(body, "return_documents", "return_text")
    results = []
    for index in sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]:
        text, score = texts[index], scores[index]
        result: dict[str, object]
        if field == "texts":
            result = {"index": index, "score": score, "text": text if asked else None}
        else:
            shown = None if asked is False else {"text": text}
            result = {"index": index, "relevance_score": score, "document": shown}
        results.append({name: value for name, value in result.items() if value is not None})
    return results
