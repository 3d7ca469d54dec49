"""vLLM's API: converts text to token ids and back; ranks, scores, classifies and pools texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.extensions.vllm import classify, pooling, rerank, score, tokenize
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, _dispatcher: Dispatcher) -> list[APIRouter]:
    return [
        tokenize.routes(service),
        rerank.routes(service),
        score.routes(service),
        classify.routes(service),
        pooling.routes(service),
    ]


API = Api(_routes)
