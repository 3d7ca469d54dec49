"""`/classify`: the classes of texts, by a sequence classifier."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response  # noqa: TC002  FastAPI reads annotations of routes

from heddle.embedding import EmbeddingParams
from heddle.errors import UnsupportedParameterError
from heddle.extensions.vllm.lists import all_vectors, framed, tokens_of_inputs
from heddle.extensions.vllm.truncation import TruncatePromptTokens  # noqa: TC001  for pydantic
from heddle.loading.judge import probability
from heddle.parameters import Api
from heddle.server.generate.dispatch import salted
from heddle.server.generate.mixed_prompts import Prompts  # noqa: TC001  for pydantic
from heddle.server.generate.vendor_fields.table import decided
from heddle.server.http.connection import unless_gone
from heddle.server.http.encoding import json_response
from heddle.server.http.record import record_of
from heddle.server.http.schema import Schema, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.loading.loaded_model import LoadedModel
    from heddle.server.generate.service import Served, Service


@decided(Api.CLASSIFY)
class ClassifyRequest(Schema):
    """Body of `POST /classify`."""

    model: str | None = None
    input: Prompts
    use_activation: bool | None = None
    truncate_prompt_tokens: TruncatePromptTokens = None
    cache_salt: str | None = None
    priority: int = 0


class Class(BaseModel):
    """The class of one text, and the probability of each class."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(BaseModel):
    """Answer of `POST /classify`."""

    id: str
    object: str
    created: int
    model: str
    data: list[Class]


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/classify", response_model=Classes, openapi_extra=takes(ClassifyRequest))
    async def classify(request: Request) -> Response:
        """The class of each text, with the probability of each class."""
        body, served, prompts = await service.take(
            request,
            ClassifyRequest,
            lambda body, served: (body, served, _prompts(body, served)),
        )
        model = served.engine.model
        params = EmbeddingParams(None, body.cache_salt, unit_length=False, priority=body.priority)
        params = salted(params, request, service)
        record_of(request.scope).describe(served.name, params)
        found = await unless_gone(
            request.receive, all_vectors(prompts, params, served, request.scope)
        )
        values = [one.tolist() for one in found]
        if body.use_activation is not False:
            values = [probabilities(logits, model) for logits in values]
        data = [
            {
                "index": index,
                "label": model.labels[one.index(max(one))],
                "probs": one,
                "num_classes": len(one),
            }
            for index, one in enumerate(values)
        ]
        return json_response(framed("classify", served.name, prompts, data))

    return router


def probabilities(logits: Sequence[float], model: LoadedModel) -> list[float]:
    """The probability of each class.

    Classes exclude each other (softmax), unless there is one, or the model's files say that a text
    may have several.
    """
    if len(logits) == 1 or model.problem_type == "multi_label_classification":
        return [probability(logit) for logit in logits]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _prompts(body: ClassifyRequest, served: Served) -> list[list[int]]:
    """The token ids of each text.

    Raises:
        UnsupportedParameterError: the model is no classifier.
        InvalidRequestError: a text is empty or too long.
    """
    model = served.engine.model
    if not model.labels:
        raise UnsupportedParameterError(
            f"{model.info.id} has no classes; load a sequence classifier, or use /v1/embeddings",
            param="model",
        )
    return tokens_of_inputs(body.input, served, body.truncate_prompt_tokens)
