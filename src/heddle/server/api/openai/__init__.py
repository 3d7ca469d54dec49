"""OpenAI's API: chat and text completions, responses, embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.server.api.openai import completions, embeddings, responses
from heddle.server.generate.api import Api

if TYPE_CHECKING:
    from fastapi import APIRouter

    from heddle.server.generate.dispatch import Dispatcher
    from heddle.server.generate.service import Service


def _routes(service: Service, dispatcher: Dispatcher) -> list[APIRouter]:
    return [
        completions.routes(service, dispatcher),
        responses.routes(service, dispatcher),
        embeddings.routes(service),
    ]


API = Api(_routes)
