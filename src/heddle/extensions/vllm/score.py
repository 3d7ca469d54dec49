"""`/score`: how well pairs of texts belong together.

A cross-encoder or another judge of documents scores a pair; of another model, the score is the
cosine of the two texts' embeddings. One text on one side belongs to all texts of the other side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.errors import InvalidRequestError, UnsupportedParameterError
from heddle.extensions.vllm.lists import MAX_INPUTS, all_vectors, framed
from heddle.extensions.vllm.truncation import (
    MaxTokensPerDoc,
    Room,
    TruncatePromptTokens,
    prompt_limit,
    prompts_of_pairs,
)
from heddle.loading.judge import paired, probability
from heddle.parameters import Api
from heddle.server.generate.dispatch import salted
from heddle.server.generate.vectors import check_length
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.connection import unless_gone
from heddle.server.http.encoding import json_response
from heddle.server.http.fields import string_or_strings
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from heddle.server.generate.service import Served, Service

    _Texts = str | list[str]
else:
    _Texts = string_or_strings(MAX_INPUTS)

_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))
"""Names of the two fields, of which a body has one pair."""


@decided(Api.SCORE)
class ScoreRequest(Schema):
    """Body of `POST /score`. The two sides are in `text_1` and `text_2`, or under other names."""

    model: str | None = None
    text_1: _Texts | None = None
    text_2: _Texts | None = None
    queries: _Texts | None = None
    documents: _Texts | None = None
    data_1: _Texts | None = None
    data_2: _Texts | None = None
    use_activation: bool | None = Field(
        None, description="false: a judge's logits in the place of probabilities"
    )
    max_tokens_per_doc: MaxTokensPerDoc = None
    truncate_prompt_tokens: TruncatePromptTokens = None
    cache_salt: str | None = None
    priority: int = 0


class Score(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class Scores(BaseModel):
    """Answer of `POST /score`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A translated body.

    Attributes:
        served: the model.
        prompts: of each pair; or of an embedding model, the first texts and then the second ones.
        pairs: places in `prompts` of each pair's two texts; None if a judge scores pairs.
        params: parameters of the prompts.
        in_logits: whether scores are logits.
    """

    served: Served
    prompts: Sequence[Sequence[int]]
    pairs: Sequence[tuple[int, int]] | None
    params: EmbeddingParams
    in_logits: bool


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/score", response_model=Scores, openapi_extra=takes(ScoreRequest))
    async def score(request: Request) -> Response:
        """Scores of pairs of texts, in their order."""
        prepared = await service.take(request, ScoreRequest, _prepared)
        served, prompts = prepared.served, prepared.prompts
        params = salted(prepared.params, request, service)
        record_of(request.scope).describe(served.name, params)
        found = await unless_gone(
            request.receive, all_vectors(prompts, params, served, request.scope)
        )
        data = [
            {"index": index, "object": "score", "score": one}
            for index, one in enumerate(_scores(prepared, found))
        ]
        return json_response(framed("score", served.name, prompts, data))

    return router


def _sides(body: ScoreRequest) -> tuple[str, str]:
    """The names of the two fields that the body has.

    Raises:
        InvalidRequestError: it has fields of several pairs, or not both of one.
    """
    given = [names for names in _SIDES if any(getattr(body, name) is not None for name in names)]
    if len(given) != 1 or any(getattr(body, name) is None for name in given[0]):
        raise InvalidRequestError(
            "send text_1 and text_2, or queries and documents, or data_1 and data_2: two texts, or"
            " lists of texts",
            param="text_1",
        )
    return given[0]


def _prepared(body: ScoreRequest, served: Served) -> _Prepared:
    """Translate a body.

    Raises:
        InvalidRequestError: the numbers of texts differ, or a text is empty or too long.
        UnsupportedParameterError: the model is a classifier of several classes.
    """
    names = _sides(body)
    pairs = paired(*(getattr(body, name) for name in names))
    if not pairs:
        raise InvalidRequestError(f"{names[0]} has no text; send some", param=names[0])
    model = served.engine.model
    if model.documents_judge is not None:
        room = Room(prompt_limit(body.truncate_prompt_tokens, served), body.max_tokens_per_doc)
        prompts = prompts_of_pairs(pairs, served, room, names[1])
        places, params = None, model.documents_judge.params
    elif model.labels:
        raise UnsupportedParameterError(
            f"{model.info.id} sorts texts into {len(model.labels)} classes and scores no pairs; use"
            " /classify, or load a cross-encoder",
            param="model",
        )
    else:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        at = {text: place for place, text in enumerate(texts)}
        prompts = [model.tokenizer.encode(model.embedding_text(text, None)) for text in texts]
        places, params = [(at[one], at[other]) for one, other in pairs], EmbeddingParams()
        model.check_one_vector(params)
        limit = prompt_limit(body.truncate_prompt_tokens, served)
        if limit is not None:
            prompts = [model.tokenizer.shorten(tokens, limit) for tokens in prompts]
        for tokens in prompts:
            check_length(tokens, names[0], served)
    params = replace(params, cache_salt=body.cache_salt, priority=body.priority)
    return _Prepared(served, prompts, places, params, body.use_activation is False)


def _scores(prepared: _Prepared, found: Sequence[array[float]]) -> list[float]:
    judge = prepared.served.engine.model.documents_judge
    if prepared.pairs is None:
        assert judge is not None, "pairs are one prompt each"
        logits = [judge.logit(vector) for vector in found]
        return logits if prepared.in_logits else list(map(probability, logits))
    vectors = [np.frombuffer(vector, np.float32).astype(np.float64) for vector in found]
    return [math.fsum((vectors[one] * vectors[other]).tolist()) for one, other in prepared.pairs]
